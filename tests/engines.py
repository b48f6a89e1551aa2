"""Strategies and layouts that one run is computed by, with the losses of a single process."""

import itertools
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import check_same_bits
from fleet import losses, train_all
from jobs import Make, without_later

from moray.config.schema.train import Adapter
from moray.train.engine import build
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.train.strategies import make_strategy
from moray.train.task import task_of
from moray.workers.entry import Worker

Jobs = dict[tuple[str, str], RunSpec]

ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp2": {"strategy": "fsdp2"},
    "hsdp": {"strategy": "fsdp2", "fsdp2": {"shard_size": 2}},
    "zero-1": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 1}},
    "zero-2": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 2}},
    "zero-3": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 3}},
}
ON_TWO = [engine for engine in ENGINES if engine != "hsdp"]
LORA = "2 x 4 x 2 with adapters"
# Workers, and rows of a micro-batch.
LAYOUTS = {"1 x 16": (1, 16), "2 x 8": (2, 8), "2 x 4 x 2": (2, 4), "4 x 4": (4, 4), LORA: (2, 4)}
ADAPTER = Adapter(rank=4, alpha=8)


def losses_alone(make: Make, alone: Worker, run: dict[str, Any]) -> dict[str, list[float]]:
    """What a single process without a process group gives: the reference."""
    whole, adapted = make("alone", **run), make("alone lora", adapter=ADAPTER, **run)
    for job in (whole, adapted):
        train(job, alone)
    return {"whole": losses(whole), "lora": losses(adapted), "held out": losses(whole, "eval_loss")}


def jobs_of(
    make: Make, engines: Iterable[str], layouts: Iterable[str], name: str, run: dict[str, Any]
) -> Jobs:
    """A job for each engine and layout."""
    jobs: Jobs = {}
    for engine, layout in itertools.product(engines, layouts):
        keys = run | ENGINES[engine] | {"micro_batch_size": LAYOUTS[layout][1]}
        adapter = ADAPTER if layout == LORA else None
        jobs[engine, layout] = make(f"{name} {engine} {layout}", adapter=adapter, **keys)
    return jobs


def workers_of(layouts: Iterable[str]) -> int:
    """The number of workers that all of these layouts have."""
    (workers,) = {LAYOUTS[layout][0] for layout in layouts}
    return workers


def check_losses(jobs: Jobs, alone: dict[str, list[float]]) -> None:
    """Hold the losses of jobs that were trained against `losses_alone`."""
    for (engine, layout), job in jobs.items():
        expected = alone["lora" if layout == LORA else "whole"]
        assert losses(job) == pytest.approx(expected, rel=1e-5), f"{engine} {layout}"
        if layout != LORA:
            held_out = pytest.approx(alone["held out"], rel=1e-5)
            assert losses(job, "eval_loss") == held_out, engine


def check_two_workers(
    make: Make,
    alone: Worker,
    folder: Path,
    rel: float,
    adapters: Sequence[Adapter | None] = (None,),
    **settings: Any,
) -> None:
    """Hold runs on two workers to those on one, and runs that go on from step 4 to whole ones.

    Args:
        rel: relative tolerance of the losses of other workers or strategies.
    """
    keys = {"save_total_limit": 10, **settings}
    one = {adapter: make(f"one {bool(adapter)}", adapter=adapter) for adapter in adapters}
    for job in one.values():
        train(job, alone)
    whole = {
        (strategy, adapter): make(
            f"{strategy} {bool(adapter)}", adapter=adapter, strategy=strategy, **keys
        )
        for strategy, adapter in itertools.product(("ddp", "fsdp2"), adapters)
    }
    train_all([*whole.values()], 2, "torchrun", folder / "first")

    def from_step_4(job: RunSpec, strategy: str) -> RunSpec:
        name = f"{job.work.name} by {strategy}"
        return without_later(make, job, name, 4, strategy=strategy, **keys)

    resumed = {key: from_step_4(job, key[0]) for key, job in whole.items()}
    moved = [
        from_step_4(whole[before, None], after)
        for before, after in (("ddp", "fsdp2"), ("fsdp2", "ddp"))
    ]
    train_all([*resumed.values(), *moved], 2, "torchrun", folder / "second")
    for (strategy, adapter), job in whole.items():
        assert losses(job) == pytest.approx(losses(one[adapter]), rel=rel), strategy
        check_same_bits(resumed[strategy, adapter], job)
    for job in moved:
        assert losses(job)[-4:] == pytest.approx(losses(one[None])[-4:], rel=rel), job.work.name


def train_without_weights(jobs: list[RunSpec], worker: Worker) -> None:
    """Train jobs whose weights only the first worker has.

    Each worker writes how many bytes it holds of quantized weights, and of how many.
    """
    for job in jobs:
        if worker.rank:
            without = Path(shutil.copytree(job.start, job.work / "without"))
            (without / "model.safetensors").unlink()
            job = replace(job, start=without)
        strategy = make_strategy(job.settings, worker)
        build(job, worker, strategy, task_of(job.store, {}), num_rows=1)
        packed = [p for p in strategy.module.parameters() if not p.is_floating_point()]
        held = sum(p.to_local().untyped_storage().nbytes() for p in packed)  # type: ignore[attr-defined]
        (job.work / f"held-{worker.rank}").write_text(json.dumps([held, len(packed)]))
        train(job, worker)
