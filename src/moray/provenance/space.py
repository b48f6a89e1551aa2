"""Disk space: check it before writing, and report when it runs out."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from moray.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ZEROS = bytes(2**20)


def check_space(folder: Path, size: int) -> None:
    """Check that a folder's disk has `size` bytes free.

    Raises:
        UserError: if it hasn't.
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UserError(
            str(folder),
            f"its disk has {free:,} bytes free, expected {size:,}",
            "free some space, or move the folder to another disk",
        )


def try_room(folder: Path, size: int) -> None:
    """Write `size` bytes to a folder's disk and remove them again.

    Raises:
        OSError: the error that a writer ran into, if the writer hides it.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        for start in range(0, size, len(_ZEROS)):
            file.write(_ZEROS[: size - start])
        file.flush()


def is_full_disk(error: Exception) -> bool:
    """Whether an error was caused by a full disk or a quota."""
    if isinstance(error, SafetensorError):
        return any(f"os error {number}" in str(error) for number in _FULL)
    return isinstance(error, OSError) and error.errno in _FULL


@contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Convert the various errors that libraries raise for a full disk or a quota to one line.

    Raises:
        UserError: naming the folder and the number of bytes written before.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not is_full_disk(error):
            raise
        raise full_disk_error(folder) from error


def full_disk_error(folder: Path) -> UserError:
    """The error to report when a folder's disk is full."""
    return UserError(
        str(folder),
        f"the disk is full after writing {bytes_below(folder):,} bytes",
        "free some space and run the same command again",
    )


def bytes_below(folder: Path) -> int:
    """The size of all files in a folder, which others may be removing meanwhile."""
    size = 0
    # Unlike `Path.rglob`, it passes over folders that are gone.
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.stat(os.path.join(inside, name)).st_size
    return size
