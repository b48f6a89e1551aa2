"""Starting the workers with PyTorch's elastic agent, as `torchrun` does; without Ray."""

import json
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from moray.config.schema import Ray
from moray.errors import UserError
from moray.processes import die_with_parent
from moray.provenance.manifest import write_json
from moray.train.job import Job
from moray.train.launchers.work import work
from moray.train.supervision.failures import WorkersFailedError
from moray.workers.cluster import check_cores
from moray.workers.worker import Worker

_JOB = TypeAdapter(Job)


def launch(job: Job, ray_settings: Ray, run: str) -> dict[str, Any]:
    """Train a job on workers of this machine; if one is lost, all start anew and resume.

    Returns:
        What the loop returned on the first worker.

    Raises:
        UserError: what a worker raised, or if the workers ask for more than there is.
        WorkersFailedError: if workers were lost or failed more often than the config allows.
    """
    path, workers = f"runs.{run}.ray", ray_settings.num_workers
    check_cores(ray_settings, path)
    gpus = torch.cuda.device_count()
    use_gpu = gpus >= workers if ray_settings.use_gpu == "auto" else ray_settings.use_gpu
    if use_gpu and gpus < workers:
        raise UserError(
            f"{path}.num_workers",
            f"got {workers} workers with use_gpu: true, expected at most the {gpus} GPUs there are",
            "lower num_workers or set use_gpu: false",
        )
    with TemporaryDirectory(prefix="moray-") as folder:
        told, outcome = Path(folder, "job.json"), Path(folder, "outcome.json")
        told.write_bytes(_JOB.dump_json(job))
        command = ["-m", __name__, "gpu" if use_gpu else "cpu", str(told), str(outcome)]
        run_workers(workers, command, ray_settings.max_failures)
        facts: dict[str, Any] = json.loads(outcome.read_text())
    if "fault" in facts:
        raise UserError(*facts["fault"])
    return facts


def run_workers(workers: int, command: list[str], max_restarts: int) -> None:
    """Run Python with these arguments in so many processes that find each other.

    Raises:
        WorkersFailedError: if processes failed more often than `max_restarts`.
    """
    with TemporaryDirectory(prefix="moray-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=max_restarts,
            monitor_interval=0.2,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)(*command)
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            raise WorkersFailedError(f"worker {failure.local_rank}: {failure.message}") from error


@contextmanager
def process_group(kind: str) -> Iterator[Worker]:
    """Be one of the workers for the body; gives where this one is."""
    die_with_parent()
    device = torch.device("cpu")
    if kind == "gpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # Checkpoints go through main memory, and so through gloo, on GPUs too.
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "gpu" else "gloo")
    try:
        yield Worker(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()


@record
def _main(kind: str, told: str, outcome: str) -> None:
    with process_group(kind) as worker:
        facts = work(_JOB.validate_json(Path(told).read_bytes()), worker)
        if dist.get_rank() == 0:
            write_json(Path(outcome), facts)


if __name__ == "__main__":
    _main(*sys.argv[1:])
