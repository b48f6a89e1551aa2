"""Many jobs one after another on the same workers, which takes seconds where a launch takes ten."""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from moray.train.history import HISTORY, read_history
from moray.train.job import Job
from moray.train.launchers import torchrun
from moray.train.launchers.work import work

Fleet = Callable[[int, list[Job]], None]

_JOBS = TypeAdapter(list[Job])


def by_torchrun(workers: int, jobs: list[Job], folder: Path) -> None:
    """Train jobs on workers of PyTorch's elastic agent."""
    told = folder / f"jobs-{workers}.json"
    told.write_bytes(_JOBS.dump_json(jobs))
    torchrun.run_workers(workers, [__file__, str(told)], max_restarts=0)


def by_ray(workers: int, jobs: list[Job], folder: Path) -> None:
    """Train jobs on workers of Ray Train; Ray is connected to."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        partial(_each_by_ray, jobs),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name=f"on-{workers}", storage_path=str(folder)),
    ).fit()


def _each_by_ray(jobs: list[Job]) -> None:
    from moray.train.launchers import ray_train

    for job in jobs:
        assert "fault" not in (facts := work(job, ray_train.this_worker())), facts


def losses(job: Job, key: str = "loss") -> list[float]:
    """The losses in a job's history."""
    return [line[key] for line in read_history(job.work / HISTORY) if key in line]


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process does; at most five minutes."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError


if __name__ == "__main__":
    with torchrun.process_group("cpu") as worker:
        for job in _JOBS.validate_json(Path(sys.argv[1]).read_bytes()):
            assert "fault" not in (facts := work(job, worker)), facts
