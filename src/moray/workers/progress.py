"""Report the progress of workers through a known number of batches."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.console import progress

_PREFIX = "done-"
_POLL_SECONDS = 0.2


def counter_name(rank: int) -> str:
    """Name of the file with a worker's count."""
    return f"{_PREFIX}{rank}"


class BatchCounter:
    """Counts the batches that a worker has done."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Count in a file of the folder, one byte per batch."""
        self._file = folder / counter_name(rank)

    def add(self) -> None:
        """Count a batch."""
        with self._file.open("ab") as file:
            file.write(b".")


@contextmanager
def shown_batches(folder: Path, label: str, total: int) -> Iterator[None]:
    """Show the number of batches that workers have counted while the body runs."""
    ended = threading.Event()

    def batches() -> Iterator[int]:
        shown = 0
        while shown < total and not ended.wait(_POLL_SECONDS):
            done = sum(file.stat().st_size for file in folder.glob(f"{_PREFIX}*"))
            while shown < min(done, total):
                shown += 1
                yield shown

    def show() -> None:
        for _ in progress(batches(), label, "batch", total):
            pass

    follower = threading.Thread(target=show, daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()
