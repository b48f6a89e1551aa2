"""What a worker that is alone is told."""

import pytest
import torch
import torch.distributed as dist

from moray.errors import UserError
from moray.train.collectives import from_first_worker, sum_over_workers


@pytest.fixture(autouse=True)
def _alone() -> None:
    assert not dist.is_initialized()


def test_the_sum_over_one_worker_is_its_own_value() -> None:
    value = torch.tensor([1.5, -2.0])
    assert sum_over_workers(value) is value
    assert value.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("value", [None, 0, {"a": [1]}])
def test_the_first_worker_s_value_is_made_once(value: object) -> None:
    calls: list[int] = []

    def make() -> object:
        calls.append(1)
        return value

    assert from_first_worker(make) is value
    assert calls == [1]


@pytest.mark.parametrize("error", [UserError("a", "got 1", "do 2"), RuntimeError("broken")])
def test_what_making_it_raises_is_raised(error: Exception) -> None:
    def make() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        from_first_worker(make)
    assert caught.value is error
