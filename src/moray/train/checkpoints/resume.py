"""Resume a run from its newest valid checkpoint."""

from pathlib import Path

from moray.provenance.manifest import damaged_files
from moray.train.checkpoints import checkpoint
from moray.train.checkpoints.checkpoint import folder_of
from moray.train.checkpoints.saver import read_state
from moray.train.early_stopping import Evaluations
from moray.train.engine.statistics import Statistics
from moray.train.engine.strategies import Strategy
from moray.train.history import History, evaluations
from moray.train.job import Job
from moray.workers.collectives import from_first_worker
from moray.workers.worker import Worker


def resume(
    job: Job, worker: Worker, strategy: Strategy, statistics: Statistics, num_steps: int
) -> tuple[int, History | None, Evaluations]:
    """Restore the newest valid checkpoint; returns the steps done, history and evaluations."""
    folder, skipped = folder_of(job.work), list[str]()
    # The first worker decides: on a shared file system, others may not see all files yet.
    step = from_first_worker(lambda: _resume_point(job, folder, skipped))
    if step:
        path = checkpoint.path_of(folder, step)
        strategy.restore(lambda state: read_state(path, state))
        if statistics.tensors:
            read_state(path, statistics.tensors)
    history = History(job.work, step) if worker.rank == 0 else None
    if history:
        for note in skipped:
            history.append(step=step, num_steps=num_steps, note=note)
    losses = from_first_worker(lambda: evaluations(job.work, until=step))
    return step, history, Evaluations(job.settings.early_stopping_patience, losses)


def _resume_point(job: Job, folder: Path, skipped: list[str]) -> int:
    """The step of the newest valid checkpoint; if the best one is exported, it is valid too."""

    def skip(path: Path, damaged: list[str]) -> None:
        skipped.append(f"skipped checkpoint {path.name}: damaged {', '.join(damaged)}")

    step = checkpoint.resume_point(folder, skip)
    while step and job.settings.load_best_model_at_end:
        best = Evaluations(None, evaluations(job.work, until=step)).best
        if best is None:
            break
        path = checkpoint.path_of(folder, best)
        if not (damaged := damaged_files(path)):
            break
        skip(path, damaged)
        # The lost steps have to be trained again.
        checkpoint.remove_from(folder, best)
        step = checkpoint.resume_point(folder, skip)
    return step
