"""What workers tell each other, and what one that is alone is reported."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forks import run_forks

from moray.errors import UserError
from moray.workers.collectives import from_any_worker, from_first_worker, sum_over_workers


@pytest.fixture(autouse=True)
def _alone() -> None:
    assert not dist.is_initialized()


def be_one_of_two(rank: int, folder: Path) -> None:
    """Write what both are reported where each of them, one, and none has something to say."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    both = from_any_worker(lambda: f"of {rank}")
    second = from_any_worker(lambda: "of 1" if rank == 1 else None)
    none = from_any_worker(lambda: None)
    (folder / str(rank)).write_text(f"{both}, {second}, {none}")
    dist.destroy_process_group()


def test_what_any_worker_says_is_reported_to_all(tmp_path: Path) -> None:
    run_forks(be_one_of_two, (tmp_path,), 2)
    reported = {(tmp_path / rank).read_text() for rank in "01"}
    assert reported == {"of 0, of 1, None"}


@pytest.mark.parametrize("value", [None, "reason"])
def test_a_worker_that_is_alone_is_any(value: str | None) -> None:
    assert from_any_worker(lambda: value) is value


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
