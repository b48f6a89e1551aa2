"""Prove a machine or a cluster end to end: nodes, network, reading, training, recovery."""

import shutil
import statistics
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from moray.console import say
from moray.train.drill import Timeline, train_and_lose_a_worker
from moray.train.history import HISTORY, read_history
from moray.train.job import Job, RunSpec
from moray.workers.entry import Worker
from moray.workers.launch import Launch
from moray.workers.run import run_on_workers

_MEGABYTE = 2**20
_MESSAGE_BYTES = 64 * _MEGABYTE
_REPETITIONS = 5
_STEPS_READ = 50


def smoke_test(
    run: str,
    start: Path,
    stores: list[Path],
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
) -> None:
    """Write `table.txt`; checkpoints go to `execution.ray.storage_path`."""
    spec = RunSpec.of_params(run, start, stores, cfg, execution)
    ray, settings = spec.ray, spec.settings
    work = Path(ray.storage_path, run, "drill").absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    job = Job(
        start=start.absolute(),
        parts=tuple(replace(part, store=part.store.absolute()) for part in spec.parts),
        work=work,
        settings=settings,
        adapter=None,
        threads=max(1, int(ray.resources_per_worker.get("CPU", 1))),
        cache=work / "compiled",
    )
    launch = Launch(
        ray,
        f"runs.{run}.ray",
        work,
        settings.launcher,
        timeout=2 * settings.stall_timeout,
        batch_size=settings.global_batch_size,
        streams=True,
    )
    measured = run_on_workers(measure, job, launch)
    timeline = Timeline(work)
    with timeline.followed():
        facts = run_on_workers(train_and_lose_a_worker, job, replace(launch, streams=False))[0]
    speeds = [
        next(value for key, value in line.items() if key.endswith("_per_second"))
        for line in read_history(work / HISTORY)
        if "loss" in line
    ]
    nodes = sorted({place["node"] for place in measured})
    gpus = sorted(place["gpu"] for place in measured if place["gpu"])
    recovery = timeline.recovery_seconds
    table = {
        "nodes": f"{len(nodes)} ({', '.join(nodes)})",
        "workers": f"{len(measured)}",
        "GPUs": f"{len(gpus)}" + (f" ({', '.join(sorted(set(gpus)))})" if gpus else ""),
        "bandwidth between workers": _bandwidth(measured),
        "rows/s read from memory": f"{sum(place['memory'] for place in measured):,.0f}",
        "rows/s streamed": f"{sum(place['stream'] for place in measured):,.0f}",
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


def _bandwidth(measured: list[dict[str, Any]]) -> str:
    if len(measured) == 1:
        return "one worker, so none"
    slowest = min(place["bandwidth"] for place in measured)
    return (
        f"{slowest / _MEGABYTE:,.0f} MiB/s each (all-reduce of {_MESSAGE_BYTES // _MEGABYTE} MiB)"
    )


def measure(job: Job, worker: Worker) -> dict[str, Any]:
    """Where a worker is, and how fast it exchanges and reads data."""
    # Imported in workers alone, because these libraries take seconds to load.
    import ray.util
    import torch

    from moray.rows.loader import Shard
    from moray.tasks import task_of
    from moray.train.step import mixture_of, rows_of

    mixture = mixture_of(job.parts, job.settings)
    task = task_of(job.store, job.task_settings)
    shard = Shard(0, _STEPS_READ, worker.rank, worker.world_size)
    parts = tuple(replace(part, rows_url=str(part.store)) for part in job.parts)
    found = {
        "memory": rows_of(job, task, mixture, shard),
        "stream": rows_of(replace(job, parts=parts), task, mixture, shard),
    }
    speeds = {}
    for name, rows in found.items():
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
