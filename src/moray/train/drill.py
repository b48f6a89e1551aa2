"""Lose a worker of a run on purpose, and time what follows."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moray.background import in_thread, repeated
from moray.provenance.manifest import write_json
from moray.storage.folder import FolderStorage
from moray.train.checkpoints import newest_step
from moray.train.entry import train_on_worker
from moray.train.history import HISTORY, read_history
from moray.train.job import Job
from moray.workers.entry import Worker

_POLL_SECONDS = 0.05
_MARK = "lost.json"
# Steps that the other workers may still log after the last one that the lost worker sees.
_STEPS_UNDER_WAY = 2


def train_and_lose_a_worker(job: Job, worker: Worker) -> dict[str, Any]:
    """Train; in the first attempt, the last worker is killed once there is a checkpoint."""
    if worker.rank == worker.world_size - 1 and not (job.work / _MARK).exists():
        in_thread(lambda: _die(job.work))
    return train_on_worker(job, worker)


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
        self._recovered: float | None = None

    @contextmanager
    def followed(self) -> Iterator[None]:
        try:
            with repeated(self._look, _POLL_SECONDS):
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
        if self._recovered is None and mark.exists():
            lost = json.loads(mark.read_text())
            if max(_steps(self._work), default=0) > lost["step"]:
                self._recovered = now - lost["time"]

    @property
    def checkpoint_seconds(self) -> float:
        """From a step to its committed checkpoint, the first one of the run."""
        first = min(self._checkpoints)
        return self._checkpoints[first] - self._steps[first]

    @property
    def recovery_seconds(self) -> float | None:
        """From the loss of the worker to a step after those done then; None without a loss."""
        return self._recovered


def _steps(work: Path) -> list[int]:
    return [line["step"] for line in read_history(work / HISTORY) if "loss" in line]
