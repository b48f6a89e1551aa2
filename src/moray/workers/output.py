"""Copy the output of workers to the log of the stage that started them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.background import repeated

_PREFIX = "output-"
_POLL_SECONDS = 0.5


def output_name(rank: int) -> str:
    """Name of the file with a worker's output."""
    return f"{_PREFIX}{rank}.txt"


def redirect_output(folder: Path, rank: int) -> None:
    """Redirect this process's standard output and error, also of C code, to its rank's file."""
    sys.stdout.flush()
    sys.stderr.flush()
    # On a machine that shares no folder with the driver.
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / output_name(rank)).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


@contextmanager
def followed_output(folder: Path) -> Iterator[None]:
    """While the body runs, copy the workers' output to standard error, each line with its rank."""
    for file in folder.glob(f"{_PREFIX}*.txt"):
        file.unlink()
    copied: dict[Path, int] = {}
    try:
        with repeated(lambda: _copy(folder, copied), _POLL_SECONDS):
            yield
    finally:
        _copy(folder, copied, last=True)


def _copy(folder: Path, copied: dict[Path, int], last: bool = False) -> None:
    for file in sorted(folder.glob(f"{_PREFIX}*.txt")):
        with file.open("rb") as stream:
            stream.seek(copied.get(file, 0))
            lines = stream.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n") and not last:
            # The line isn't complete yet.
            lines.pop()
        copied[file] = copied.get(file, 0) + sum(map(len, lines))
        rank = file.stem.removeprefix(_PREFIX)
        for line in lines:
            print(f"[worker {rank}] {line.decode(errors='replace').rstrip()}", file=sys.stderr)
    sys.stderr.flush()
