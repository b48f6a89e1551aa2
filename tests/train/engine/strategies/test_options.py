"""What the libraries behind the strategies are given."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy

from moray.config.schema import Train
from moray.errors import UserError
from moray.train.engine.strategies.deepspeed import DeepSpeedStrategy
from moray.train.engine.strategies.fsdp2 import FullyShardedStrategy
from moray.workers.worker import Worker


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("given", [True, False])
def test_fsdp2_has_the_options_of_the_config(alone: Worker, given: bool) -> None:
    settings = Train.model_validate(
        {"strategy": "fsdp2", "fsdp2": {"reshard_after_forward": given, "cpu_offload": given}}
    )
    options = FullyShardedStrategy(settings, alone)._options()
    assert options["reshard_after_forward"] is given
    assert isinstance(options["offload_policy"], CPUOffloadPolicy) is given


@pytest.mark.usefixtures("group")
def test_workers_that_make_no_whole_copies_are_refused(alone: Worker) -> None:
    settings = Train.model_validate({"strategy": "fsdp2", "fsdp2": {"shard_size": 2}})
    with pytest.raises(UserError) as caught:
        FullyShardedStrategy(settings, alone)._options()
    assert str(caught.value) == (
        "train.fsdp2.shard_size: got 2, expected a divisor of the number of workers (1); change "
        "it, or set ray.num_workers"
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"zero_stage": 1}, {"stage": 1}),
        (
            {"zero_stage": 2, "offload_optimizer": True},
            {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        ),
        (
            {"zero_stage": 3, "offload_parameters": True},
            {"stage": 3, "offload_param": {"device": "cpu"}},
        ),
    ],
)
def test_deepspeed_has_the_options_of_the_config(
    alone: Worker, keys: dict[str, Any], expected: dict[str, Any]
) -> None:
    settings = Train.model_validate({"strategy": "deepspeed", "deepspeed": keys})
    zero = DeepSpeedStrategy(settings, alone)._config()["zero_optimization"]
    named = ("stage", "offload_optimizer", "offload_param")
    assert {key: zero[key] for key in named if key in zero} == expected
