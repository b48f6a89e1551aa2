"""Which checkpoints of a run are kept."""

from moray.storage.interface import Storage


def newest_step(storage: Storage) -> int:
    """The step of the newest checkpoint, damaged or not; 0 if there is none."""
    return max(storage.steps(), default=0)


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
