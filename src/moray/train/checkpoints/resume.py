"""Resume a run from its newest valid checkpoint."""

import shutil

from moray.storage.interface import Storage
from moray.storage.paths import name_of
from moray.train.checkpoints import checkpoint
from moray.train.checkpoints.saver import read_state
from moray.train.early_stopping import Evaluations
from moray.train.engine.statistics import Statistics
from moray.train.engine.strategies import Strategy
from moray.train.history import HISTORY, History, evaluations
from moray.train.job import Job
from moray.workers.collectives import from_first_worker, together
from moray.workers.worker import Worker


def resume(
    job: Job,
    worker: Worker,
    storage: Storage,
    strategy: Strategy,
    statistics: Statistics,
    num_steps: int,
) -> tuple[int, History | None, Evaluations]:
    """Restore the newest valid checkpoint; returns the steps done, history and evaluations."""
    skipped = list[str]()
    # The first worker decides: on a shared file system, others may not see all files yet.
    step = from_first_worker(lambda: _resume_point(job, storage, skipped))
    if step:
        path = together(lambda: storage.fetch(step))
        strategy.restore(lambda state: read_state(path, state))
        if statistics.tensors:
            read_state(path, statistics.tensors)
    history = History(job.work, step) if worker.rank == 0 else None
    if history:
        for note in skipped:
            history.append(step=step, num_steps=num_steps, note=note)
    losses = from_first_worker(lambda: evaluations(job.work, until=step))
    return step, history, Evaluations(job.settings.early_stopping_patience, losses)


def _resume_point(job: Job, storage: Storage, skipped: list[str]) -> int:
    """The step of the newest valid checkpoint; if the best one is exported, it is valid too."""

    def skip(step: int, damaged: list[str]) -> None:
        name = name_of(step)
        skipped.append(f"skipped checkpoint {name}: damaged {', '.join(damaged)}")

    step = _restored(storage, skip)
    while step and job.settings.load_best_model_at_end:
        best = Evaluations(None, evaluations(job.work, until=step)).best
        if best is None:
            break
        if not (damaged := storage.damaged(best)):
            break
        skip(best, damaged)
        # The lost steps have to be trained again.
        checkpoint.remove_from(storage, best)
        step = _restored(storage, skip)
    return step


def _restored(storage: Storage, skip: checkpoint.Skipped) -> int:
    """The step to resume from, whose history is put into the work folder."""
    step = checkpoint.resume_point(storage, skip)
    if step and (history := storage.history_of(step)) != storage.work:
        shutil.copyfile(history / HISTORY, storage.work / HISTORY)
    return step
