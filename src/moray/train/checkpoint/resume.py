"""Resume a run from its newest valid checkpoint.

Sample order, learning rate and dropout are functions of the step, so the step is the whole position
of a run.
"""

import shutil

import torch

from moray.storage.interface import Storage, name_of
from moray.train.checkpoint.keep import remove_from
from moray.train.checkpoint.load import names_in, read_state
from moray.train.history import HISTORY, History, evaluations
from moray.train.performance import MeanLoss
from moray.train.schedule import Evaluations
from moray.train.spec import RunSpec
from moray.train.statistics import Statistics
from moray.train.strategies import Strategy
from moray.workers.collectives import from_first_worker, together
from moray.workers.entry import Worker


def resume(
    spec: RunSpec,
    worker: Worker,
    storage: Storage,
    strategy: Strategy,
    statistics: Statistics,
    mean_loss: MeanLoss,
    num_steps: int,
) -> tuple[int, History | None, Evaluations]:
    """Restore the newest valid checkpoint; returns the steps done, history and evaluations."""
    skipped = list[str]()
    # The first worker decides: on a shared file system, others may not see all files yet.
    step = from_first_worker(lambda: resume_step(spec, storage, skipped))
    if step:
        path = together(lambda: storage.fetch(step))
        strategy.restore(lambda state: read_state(path, state))
        if statistics.tensors:
            read_state(path, statistics.tensors)
        if mean_loss.NAME in names_in(path):
            unlogged = torch.empty(2, dtype=torch.float64)
            read_state(path, {mean_loss.NAME: unlogged})
            mean_loss.restore(unlogged)
    history = History(spec.work, step) if worker.rank == 0 else None
    if history:
        for note in skipped:
            history.append(step=step, num_steps=num_steps, note=note)
    losses = from_first_worker(lambda: evaluations(spec.work, until=step))
    return step, history, Evaluations(spec.settings.early_stopping_patience, losses)


def resume_step(spec: RunSpec, storage: Storage, notes: list[str]) -> int:
    """The step to resume from, whose history is put into the work folder; 0 if there is none.

    It is that of the newest valid checkpoint; if the best one is exported, it is valid too. Each
    damaged one gets a note.
    """
    step = _restored(storage, notes)
    while step and spec.settings.load_best_model_at_end:
        best = Evaluations(None, evaluations(spec.work, until=step)).best
        if best is None or not _is_damaged(storage, best, notes):
            break
        # The lost steps have to be trained again.
        remove_from(storage, best)
        step = _restored(storage, notes)
    return step


def _restored(storage: Storage, notes: list[str]) -> int:
    step = resume_point(storage, notes)
    if step and (history := storage.history_of(step)) != storage.work:
        shutil.copyfile(history / HISTORY, storage.work / HISTORY)
    return step


def resume_point(storage: Storage, notes: list[str]) -> int:
    """The step of the newest valid checkpoint, 0 if there is none; newer damaged ones are removed.

    Otherwise they would count towards the number to keep. Partial checkpoints are removed too.
    """
    storage.remove_uncommitted()
    steps = reversed(storage.steps())
    step = next((step for step in steps if not _is_damaged(storage, step, notes)), 0)
    remove_from(storage, step + 1)
    return step


def _is_damaged(storage: Storage, step: int, notes: list[str]) -> bool:
    """Whether a checkpoint is damaged, which gets a note."""
    if damaged := storage.damaged_files(step):
        notes.append(f"skipped checkpoint {name_of(step)}: damaged {', '.join(damaged)}")
    return bool(damaged)
