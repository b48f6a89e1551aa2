"""Which checkpoint a run resumes from, and which ones are kept.

Sample order, learning rate and dropout are functions of the step, so the step is the whole position
of a run.
"""

from collections.abc import Callable

from moray.storage.interface import Storage

Skipped = Callable[[int, list[str]], None]
"""Called with the step of a damaged checkpoint, and its damaged files."""


def newest(storage: Storage, skipped: Skipped) -> int:
    """The step of the newest valid checkpoint; 0 if there is none.

    Args:
        storage: the state of the run.
        skipped: called for each newer one that is damaged.
    """
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
