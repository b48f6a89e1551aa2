"""Prove a machine or a cluster end to end: nodes, network, reading, training, recovery."""

import json
import os
import shutil
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from moray.background import call_repeatedly, in_thread
from moray.console import say
from moray.provenance.manifest import write_json
from moray.storage.folder import FolderStorage
from moray.train.checkpoint.keep import newest_step
from moray.train.driver import train_on_worker
from moray.train.history import HISTORY, read_history
from moray.train.spec import RunSpec
from moray.workers.entry import Worker
from moray.workers.launch import Launch
from moray.workers.run import run_on_workers

_MEGABYTE = 2**20
_MESSAGE_BYTES = 64 * _MEGABYTE
_REPETITIONS = 5
_STEPS_READ = 50
_POLL_SECONDS = 0.05
_MARK = "lost.json"
# Steps that the other workers may still log after the last one that the lost worker sees.
_STEPS_UNDER_WAY = 2


def smoke_test(
    run: str,
    start: Path,
    stores: list[Path],
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
) -> None:
    """Write `table.txt`; checkpoints go to `execution.ray.storage_path`."""
    spec = RunSpec.of_params(run, start, stores, cfg, execution).with_inputs(Path.absolute)
    ray, settings = spec.ray, spec.settings
    work = Path(ray.storage_path, run, "drill").absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    spec = replace(spec, work=work, cache=work / "compiled")
    launch = Launch(
        ray,
        f"runs.{run}.ray",
        work,
        settings.launcher,
        timeout=2 * settings.stall_timeout,
        batch_size=settings.global_batch_size,
        streams=True,
    )
    measurements = run_on_workers(measure, spec, launch)
    timeline = Timeline(work)
    with timeline.follow():
        facts = run_on_workers(train_and_lose_a_worker, spec, replace(launch, streams=False))[0]
    speeds = [
        next(value for key, value in line.items() if key.endswith("_per_second"))
        for line in read_history(work / HISTORY)
        if "loss" in line
    ]
    nodes = sorted({place["node"] for place in measurements})
    gpus = sorted(place["gpu"] for place in measurements if place["gpu"])
    recovery = timeline.recovery_seconds
    table = {
        "nodes": f"{len(nodes)} ({', '.join(nodes)})",
        "workers": f"{len(measurements)}",
        "GPUs": f"{len(gpus)}" + (f" ({', '.join(sorted(set(gpus)))})" if gpus else ""),
        "bandwidth between workers": _bandwidth(measurements),
        "rows/s read from memory": f"{sum(place['memory'] for place in measurements):,.0f}",
        "rows/s streamed": f"{sum(place['stream'] for place in measurements):,.0f}",
        "tokens/s trained": f"{statistics.median(speeds):,.0f}",
        "checkpoint": f"{timeline.checkpoint_seconds:.2f} s",
        "recovery from the loss of a worker": f"{recovery:.1f} s" if recovery else "not seen",
        "steps": f"{facts['steps']}, resumed from step {facts['resumed_from']}",
    }
    width = max(map(len, table))
    lines = [f"{name:<{width}}  {value}" for name, value in table.items()]
    output.mkdir(parents=True, exist_ok=True)
    (output / "table.txt").write_text("\n".join(lines) + "\n")
    for line in lines:
        say(line)


def _bandwidth(measurements: list[dict[str, Any]]) -> str:
    if len(measurements) == 1:
        return "one worker, so none"
    slowest = min(place["bandwidth"] for place in measurements)
    return (
        f"{slowest / _MEGABYTE:,.0f} MiB/s each (all-reduce of {_MESSAGE_BYTES // _MEGABYTE} MiB)"
    )


def measure(spec: RunSpec, worker: Worker) -> dict[str, Any]:
    """The place of a worker, and how fast it exchanges and reads data."""
    # Imported in workers alone, because these libraries take seconds to load.
    import ray.util
    import torch

    from moray.rows.loader import Shard
    from moray.train.step import mixture_of, rows_of
    from moray.train.task import task_of

    mixture = mixture_of(spec.parts, spec.settings)
    task = task_of(spec.store, spec.task_settings)
    shard = Shard(0, _STEPS_READ, worker.rank, worker.world_size)
    parts = tuple(replace(part, rows_url=str(part.store)) for part in spec.parts)
    readers = {
        "memory": rows_of(spec, task, mixture, shard),
        "stream": rows_of(replace(spec, parts=parts), task, mixture, shard),
    }
    speeds = {}
    for name, rows in readers.items():
        began = time.perf_counter()
        count = sum(len(mine) for mine in islice(rows, _STEPS_READ))
        speeds[name] = count / (time.perf_counter() - began)
    on_gpu = worker.device.type == "cuda"
    return {
        "node": ray.util.get_node_ip_address(),
        "gpu": torch.cuda.get_device_name(worker.device) if on_gpu else None,
        "bandwidth": _all_reduce_bandwidth(worker),
        **speeds,
    }


def _all_reduce_bandwidth(worker: Worker) -> float:
    """Bytes per second that a worker sends, as those of a ring: 2 (n - 1) / n of the message."""
    import torch

    from moray.workers.collectives import sum_over_workers

    message = torch.zeros(_MESSAGE_BYTES // 4, device=worker.device)
    # The first one connects the workers.
    sum_over_workers(message)
    began = time.perf_counter()
    for _ in range(_REPETITIONS):
        sum_over_workers(message)
    # Waits for a GPU.
    message[0].item()
    seconds = (time.perf_counter() - began) / _REPETITIONS
    return 2 * (worker.world_size - 1) / worker.world_size * _MESSAGE_BYTES / seconds


def train_and_lose_a_worker(spec: RunSpec, worker: Worker) -> dict[str, Any]:
    """Train; in the first attempt, the last worker is killed once there is a checkpoint."""
    if worker.rank == worker.world_size - 1 and not (spec.work / _MARK).exists():
        in_thread(lambda: _die(spec.work))
    return train_on_worker(spec, worker)


def _die(work: Path) -> None:
    while not newest_step(FolderStorage(work)):
        time.sleep(_POLL_SECONDS)
    last = max(_steps(work))
    write_json(work / _MARK, {"time": time.time(), "step": last + _STEPS_UNDER_WAY})
    os.kill(os.getpid(), signal.SIGKILL)


class Timeline:
    """When a run's steps and checkpoints were first seen, in seconds since the epoch."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._steps: dict[int, float] = {}
        self._checkpoints: dict[int, float] = {}
        # Seconds from the loss of the worker to a step after those done then; None without a loss.
        self.recovery_seconds: float | None = None

    @contextmanager
    def follow(self) -> Iterator[None]:
        try:
            with call_repeatedly(self._look, _POLL_SECONDS):
                yield
        finally:
            self._look()

    def _look(self) -> None:
        now = time.time()
        for step in _steps(self._work):
            self._steps.setdefault(step, now)
        if newest := newest_step(FolderStorage(self._work)):
            self._checkpoints.setdefault(newest, now)
        mark = self._work / _MARK
        if self.recovery_seconds is None and mark.exists():
            event = json.loads(mark.read_text())
            if max(_steps(self._work), default=0) > event["step"]:
                self.recovery_seconds = now - event["time"]

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds from a step to its committed checkpoint, for the first one of the run."""
        first = min(self._checkpoints)
        return self._checkpoints[first] - self._steps[first]


def _steps(work: Path) -> list[int]:
    return [line["step"] for line in read_history(work / HISTORY) if "loss" in line]
