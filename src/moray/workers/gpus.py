"""Reserve GPUs of this machine, so that each is used by one run at a time.

Snakemake counts the GPUs of its jobs but doesn't assign them, and two workflows don't know about
each other. So a run holds a file lock for each of its GPUs, and hides all others from itself.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from moray.console import say
from moray.machine import gpus

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_POLL_SECONDS = 1.0


@contextmanager
def reserved_gpus(count: int, folder: Path | None = None) -> Iterator[list[str]]:
    """Reserve GPUs for the body; this process and its children see no others.

    Waits until enough GPUs are free.

    Args:
        count: number of GPUs; 0 hides all of them.
        folder: folder of the locks; by default, one that all runs of this user on this machine
            share.
    """
    folder = folder or Path(tempfile.gettempdir(), f"moray-gpus-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    before = os.environ.get(_VISIBLE)
    with ExitStack() as locks:
        held = _hold(gpus(), count, folder, locks)
        os.environ[_VISIBLE] = ",".join(held)
        try:
            yield held
        finally:
            if before is None:
                del os.environ[_VISIBLE]
            else:
                os.environ[_VISIBLE] = before


def _hold(names: list[str], count: int, folder: Path, locks: ExitStack) -> list[str]:
    waiting = False
    while True:
        held: list[str] = []
        with ExitStack() as mine:
            for name in names:
                if len(held) < count and (lock := _lock(folder / name)):
                    mine.enter_context(lock)
                    held.append(name)
            # All or none: two runs that each hold a GPU the other needs would wait forever.
            if len(held) == count:
                locks.push(mine.pop_all())
                return held
        if not waiting:
            say("waiting for a free GPU" if count == 1 else f"waiting for {count} free GPUs")
            waiting = True
        time.sleep(_POLL_SECONDS)


def _lock(file: Path) -> IO[str] | None:
    """Open and lock a file until it is closed; None if another process has locked it."""
    stream = file.open("a")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return stream
