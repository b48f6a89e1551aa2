"""Which checkpoint a run resumes from, and which ones are kept.

Sample order, learning rate and dropout are functions of the step, so the step is the whole position
of a run.
"""

import shutil
from collections.abc import Callable

from moray.storage.interface import Storage, name_of
from moray.train.history import HISTORY, evaluations
from moray.train.job import Job
from moray.train.schedule import Evaluations

Skipped = Callable[[int, list[str]], None]
"""Called with the step of a damaged checkpoint, and its damaged files."""


def newest(storage: Storage, skipped: Skipped) -> int:
    """The step of the newest valid checkpoint, 0 if there is none; newer ones are `skipped`."""
    for step in reversed(storage.steps()):
        damaged = storage.damaged(step)
        if not damaged:
            return step
        skipped(step, damaged)
    return 0


def newest_step(storage: Storage) -> int:
    """The step of the newest checkpoint, damaged or not; 0 if there is none."""
    return max(storage.steps(), default=0)


def resume_point(storage: Storage, skipped: Skipped) -> int:
    """The step of the newest valid checkpoint, 0 if there is none; newer damaged ones are removed.

    Otherwise they would count towards the number to keep. Partial checkpoints are removed too.
    """
    storage.remove_uncommitted()
    step = newest(storage, skipped)
    remove_from(storage, step + 1)
    return step


def remove_from(storage: Storage, step: int) -> None:
    """Remove the checkpoints of a step and of later ones."""
    for later in storage.steps():
        if later >= step:
            storage.remove(later)


def remove_old(storage: Storage, keep: int, best: int | None = None) -> None:
    """Remove all but the newest and the best, and partial checkpoints of dead attempts."""
    for step in storage.steps()[:-keep]:
        if step != best:
            storage.remove(step)
    storage.remove_uncommitted()


def resume_step(job: Job, storage: Storage, notes: list[str]) -> int:
    """The step to resume from, whose history is put into the work folder; 0 if there is none.

    It is that of the newest valid checkpoint; if the best one is exported, it is valid too. Each
    damaged one gets a note.
    """

    def skip(step: int, damaged: list[str]) -> None:
        notes.append(f"skipped checkpoint {name_of(step)}: damaged {', '.join(damaged)}")

    step = _restored(storage, skip)
    while step and job.settings.load_best_model_at_end:
        best = Evaluations(None, evaluations(job.work, until=step)).best
        if best is None:
            break
        if not (damaged := storage.damaged(best)):
            break
        skip(best, damaged)
        # The lost steps have to be trained again.
        remove_from(storage, best)
        step = _restored(storage, skip)
    return step


def _restored(storage: Storage, skip: Skipped) -> int:
    step = resume_point(storage, skip)
    if step and (history := storage.history_of(step)) != storage.work:
        shutil.copyfile(history / HISTORY, storage.work / HISTORY)
    return step
