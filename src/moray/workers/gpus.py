"""GPUs of this machine, held by one run at a time.

Snakemake counts how many GPUs its jobs take, and not which; and two workflows don't know each
other. So a run holds a lock of the kernel for each GPU, and sees no other.
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
    """Hold some of this machine's GPUs for the body; this process and its children see no others.

    Waits for GPUs that other runs hold.

    Args:
        count: how many; 0 hides all of them.
        folder: of the locks; one that all runs of this user on this machine share unless given.
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
            # All or none: two runs that each hold what the other waits for would wait for ever.
            if len(held) == count:
                locks.push(mine.pop_all())
                return held
        if not waiting:
            say(f"waiting for {count} GPUs, some of which other runs hold")
            waiting = True
        time.sleep(_POLL_SECONDS)


def _lock(file: Path) -> IO[str] | None:
    """The file, locked until it is closed; None if another process has locked it."""
    stream = file.open("a")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return stream
