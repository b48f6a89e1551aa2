"""What a worker holds between its backward pass and its step, for each strategy."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.train.setting import spec_of
from moray.config.schema.sections import Ray
from moray.config.schema.train import Adapter
from moray.model.shapes import (
    num_adapter_parameters,
    num_in_linear_layers,
    num_parameters,
    shapes_in,
)
from moray.rows.store import RowPositions
from moray.tasks.language.rows import StoredSplit
from moray.train.engine import build
from moray.train.memory import footprint
from moray.train.step import feeds, gradients
from moray.train.strategies import make_strategy
from moray.train.task import task_of
from moray.workers.entry import Worker

ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp2": {"strategy": "fsdp2"},
    "ZeRO 1": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 1}},
    "ZeRO 2": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 2}},
    "ZeRO 3": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 3}},
    "ddp, LoRA": {"adapter": Adapter(rank=16)},
    "ddp, LoRA, base in bf16": {"adapter": Adapter(rank=16, base_dtype="bf16")},
    "fsdp2, LoRA, base in bf16": {
        "strategy": "fsdp2",
        "adapter": Adapter(rank=16, base_dtype="bf16"),
    },
    "ddp, QLoRA": {"adapter": Adapter(rank=16, quantize_base="4bit")},
    "fsdp2, QLoRA": {"strategy": "fsdp2", "adapter": Adapter(rank=16, quantize_base="4bit")},
}


def live_bytes() -> dict[int, int]:
    """Bytes of each block of memory that a tensor lies in, by its address."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if isinstance(thing, Tensor)]
    # Gradients that nobody asked for have no object of Python's.
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    blocks = [t.untyped_storage() for t in tensors if t.device.type == "cpu"]
    return {block.data_ptr(): block.nbytes() for block in blocks}


def held_by(
    folder: Path, settings: dict[str, Any], adapter: Adapter | None, worker: Worker
) -> tuple[int, int]:
    """Bytes that a worker holds of a strategy's run, and those that the formula says."""
    rows = 4 // worker.world_size
    run = spec_of(
        folder, folder, Ray(num_workers=1), global_batch_size=4, micro_batch_size=rows, **settings
    )
    run = replace(run, adapter=adapter)
    before = live_bytes()
    strategy = make_strategy(run.settings, worker)
    task = task_of(run.store, {})
    build(run, worker, strategy, task, num_rows=1)
    mine = StoredSplit(folder / "tokens", "train").rows[:rows]
    where = RowPositions(run.settings.seed, np.arange(rows))
    (feed,) = feeds(task, iter([mine]), iter([where]), rows)
    gradients(strategy, feed.batches, feed.weight * worker.world_size, run.settings, worker)
    # The buckets that gradients travel in are DeepSpeed's own, of a size that is a setting.
    after = live_bytes()
    buckets = {size * 5 * 10**8 for size in (2, 4)}
    held = sum(size for at, size in after.items() if at not in before and size not in buckets)
    shapes = shapes_in(folder / "model")
    whole, linear = num_parameters(shapes), num_in_linear_layers(shapes)
    trained = num_adapter_parameters(shapes, adapter.rank) if adapter else whole
    workers, other = worker.world_size, whole - linear
    return held, footprint(run.settings, workers, trained, adapter, linear, other).total


def measure(arguments: tuple[Path, str], worker: Worker) -> tuple[int, int]:
    """What `held_by` gives for an engine, without compiled code."""
    folder, engine = arguments
    settings = {**ENGINES[engine], "compile": False}
    adapter = settings.pop("adapter", None)
    return held_by(folder, settings, adapter, worker)
