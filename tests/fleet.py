"""Many jobs one after another on the same workers, which takes seconds where a launch takes ten."""

import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from moray.config.schema.sections import Ray
from moray.errors import UserError, first_line
from moray.train.history import HISTORY, read_history
from moray.train.spec import RunSpec
from moray.workers.entry import Worker
from moray.workers.launch import Launch
from moray.workers.run import run_on_workers

CORES = 2


def train_all(
    jobs: list[RunSpec],
    workers: int,
    launcher: str,
    folder: Path,
    entry_point: Callable[[list[RunSpec], Worker], None] | None = None,
) -> None:
    """Train jobs one after another on workers that one launch starts."""
    folder.mkdir(exist_ok=True)
    launch = Launch(
        ray=Ray(
            num_workers=workers,
            resources_per_worker={"CPU": min(1.0, CORES / workers)},
            max_failures=0,
        ),
        path="runs.name.ray",
        folder=folder,
        launcher=launcher,  # type: ignore[arg-type]
        timeout=600,
    )
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        # Ray's processes find this module by it.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        run_on_workers(entry_point or train_each, jobs, launch)


def train_each(jobs: list[RunSpec], worker: Worker) -> None:
    """Train jobs on this worker."""
    from moray.train.loop import train

    for job in jobs:
        train(job, worker)


def train_or_say_why(jobs: list[RunSpec], worker: Worker) -> None:
    """Train jobs; what one of them raises is left in its folder."""
    from moray.train.loop import train

    for job in jobs:
        try:
            train(job, worker)
        except UserError as error:
            (job.work / "why").write_text(str(error))
        except Exception as error:
            traceback.print_exc()
            (job.work / "why").write_text(f"{type(error).__name__}: {first_line(error)}")


def train_and_record(jobs: list[RunSpec], worker: Worker) -> None:
    """Train jobs; each worker leaves what it recorded of a job in the job's folder."""
    from moray.train.loop import train

    for job in jobs:
        (job.work / f"facts-{worker.rank}.json").write_text(json.dumps(train(job, worker)))


def losses(job: RunSpec, key: str = "loss") -> list[float]:
    """The losses in a job's history."""
    return [line[key] for line in read_history(job.work / HISTORY) if key in line]


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process does; at most five minutes."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError
