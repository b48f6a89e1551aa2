"""The memory that a worker needs, against what real tensors of a strategy come to."""

from typing import Any

import pytest
import torch

from moray.config.schema.train import Adapter, Train
from moray.train.engine import build
from moray.train.memory import footprint, frozen_bytes, scale_bytes
from moray.train.optimizer import as_saved
from moray.train.strategies import make_strategy
from moray.train.task import task_of
from moray.workers.entry import Worker


def strategy_settings(name: str, **keys: Any) -> Train:
    if name.startswith("zero"):
        return Train(strategy="deepspeed", deepspeed={"zero_stage": int(name[-1])})
    return Train(strategy=name, **keys)


# Floats for each trained parameter on one of four workers: weights, gradients, optimizer.
FLOATS = {
    "ddp": (1, 1, 2),
    "fsdp2": (1 / 4, 1 / 4, 2 / 4),
    "zero1": (1, 1, 3 / 4),
    "zero2": (1, 1 / 4, 3 / 4),
    "zero3": (1 / 4, 1 / 4, 3 / 4),
}


@pytest.mark.parametrize("name", FLOATS)
def test_what_is_spread_is_divided_by_the_workers(name: str) -> None:
    found = footprint(strategy_settings(name), workers=4, trained=1000)
    each = (found.parameters, found.gradients, found.optimizer)
    assert each == tuple(4000 * floats for floats in FLOATS[name])
    assert found.total == sum(each)


def test_moments_in_8_bits_take_2_bytes_and_those_in_fp32_8() -> None:
    settings = Train(strategy="fsdp2", optimizer="adamw_8bit")
    found = footprint(settings, workers=4, trained=1000)
    assert (found.parameters, found.gradients, found.optimizer) == (1000, 1000, 500)


@pytest.mark.parametrize(("weights", "size"), [("fp32", 4), ("bf16", 2)])
def test_gradients_that_add_up_before_they_meet_are_whole_and_in_fp32(
    weights: str, size: int
) -> None:
    for micro_batch_size, expected in ((4, size * 1000 / 4), (2, 4000)):
        keys = {"global_batch_size": 16, "micro_batch_size": micro_batch_size, "weights": weights}
        found = footprint(strategy_settings("fsdp2", **keys), workers=4, trained=1000)
        assert found.gradients == expected


def test_a_copy_is_divided_by_the_workers_that_share_it() -> None:
    keys = {"fsdp2": {"shard_size": 2}}
    found = footprint(strategy_settings("fsdp2", **keys), workers=4, trained=1000)
    assert (found.parameters, found.gradients, found.optimizer) == (2000, 2000, 4000)


def test_frozen_weights_have_no_gradients_and_no_optimizer_state() -> None:
    found = footprint(strategy_settings("ddp"), 2, trained=10, adapter=Adapter(), other=1000)
    assert (found.parameters, found.gradients, found.optimizer) == (4040, 40, 80)


@pytest.mark.parametrize(
    ("adapter", "expected"),
    [
        (None, 0),
        (Adapter(), 4 * 74_384),
        (Adapter(base_dtype="bf16"), 2 * 74_384),
        # Halves of bytes; a byte for each 64 of the weights; 4 bytes for each 64 of these by 256.
        (Adapter(quantize_base="4bit"), 32_768 + 1024 + 16 + 4 * 8848),
        (Adapter(quantize_base="4bit", base_dtype="bf16"), 32_768 + 1024 + 16 + 2 * 8848),
        # Scales are weights of their own.
        (Adapter(quantize_base="8bit", base_dtype="bf16"), 65_536 + 2 * 8848),
    ],
)
def test_a_frozen_base_takes_what_its_types_take(adapter: Adapter | None, expected: int) -> None:
    assert frozen_bytes(adapter, linear=65_536, other=8848) == expected


def test_scales_of_4_bit_weights_are_whole_on_each_worker() -> None:
    adapter = Adapter(quantize_base="4bit")
    scales = scale_bytes(adapter, 65_536)
    assert scales == 1024 + 16
    for none in (None, Adapter(), Adapter(quantize_base="8bit")):
        assert scale_bytes(none, 65_536) == 0
    found = footprint(strategy_settings("fsdp2"), 4, 0, adapter, 65_536, 8848)
    assert found.parameters == (32_768 + 4 * 8848) // 4 + scales


def test_a_single_worker_holds_what_the_formula_says(make_job: Any, alone: Worker) -> None:
    job = make_job()
    strategy = make_strategy(job.settings, alone)
    build(job, alone, strategy, task_of(job.store, {}), num_rows=1)
    weights = list(strategy.module.parameters())
    state = {name: as_saved(value) for name, value in strategy.state().items()}
    moments = sum(value.nbytes for name, value in state.items() if "/exp_avg" in name)
    found = footprint(job.settings, 1, sum(p.numel() for p in weights))
    assert found.parameters == sum(p.nbytes for p in weights)
    assert found.optimizer == moments
    assert torch.get_default_dtype() == torch.float32
