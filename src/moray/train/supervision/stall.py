"""Make a hung training fail, with the stack traces of each worker."""

import faulthandler
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.config.schema import Train

_PREFIX = "stalled-"


def collective_timeout(settings: Train) -> float:
    """Seconds after which a collective gives up.

    Longer than the stall timeout, so that the worker that hangs dumps its stacks first.
    """
    return 2 * settings.stall_timeout


@contextmanager
def ended_by_stall(work: Path, rank: int, seconds: float) -> Iterator[Callable[[], None]]:
    """During the body, end this process if the yielded function isn't called in time.

    The stacks of its threads are written first, by a thread that doesn't need the interpreter,
    which may be what hangs.

    Args:
        work: folder for the stacks; those of an earlier attempt are overwritten.
        rank: rank of this worker.
        seconds: maximum time between two calls.
    """
    with (work / stacks_name(rank)).open("w") as file:

        def alive() -> None:
            faulthandler.dump_traceback_later(seconds, file=file, exit=True)

        alive()
        try:
            yield alive
        finally:
            faulthandler.cancel_dump_traceback_later()


def stacks_name(rank: int) -> str:
    """Name of the file with a worker's stacks."""
    return f"{_PREFIX}{rank}.txt"


def stacks(work: Path) -> dict[int, str]:
    """The stacks of workers that hung, by rank."""
    files = work.glob(f"{_PREFIX}*.txt")
    found = {int(path.stem.removeprefix(_PREFIX)): path.read_text() for path in files}
    return {rank: text for rank, text in sorted(found.items()) if text}


def forget(work: Path) -> None:
    """Remove the stacks that an earlier start of the run has left."""
    for path in work.glob(f"{_PREFIX}*.txt"):
        path.unlink()
