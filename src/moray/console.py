"""What a stage tells the user while it runs: on the terminal and in the log.

A stage's standard streams belong to its log, where libraries may be as noisy as they like;
the console keeps a way to the terminal that was there before.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_terminal: TextIO = sys.stderr


def say(line: str) -> None:
    """Print a line for the user; the log gets it too."""
    print(line, file=_terminal, flush=True)
    if _terminal is not sys.stderr:
        print(line, file=sys.stderr, flush=True)


def terminal() -> TextIO:
    """The stream that the user sees."""
    return _terminal


@contextmanager
def streams_into(log: Path) -> Iterator[None]:
    """Send this process's standard output and error into a file, from C code too."""
    global _terminal
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with log.open("a") as file, os.fdopen(os.dup(2), "w") as user:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        previous, _terminal = _terminal, user
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # What C code has printed may still be in its own buffer.
            ctypes.CDLL(None).fflush(None)
            _terminal = previous
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])
