"""Room on the disk: asked for before writing, and told of when it runs out."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def check_space(folder: Path, needed: int) -> None:
    """Make sure that a folder's disk takes so many bytes more.

    Raises:
        UserError: if it doesn't.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            str(folder),
            f"got {free:,} bytes free on its disk, expected {needed:,}",
            "free some, or move the folder to another disk",
        )


def of_full_disk(error: Exception) -> bool:
    """Whether an error is that of a full disk or a quota."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextmanager
def telling_of_full_disk(folder: Path) -> Iterator[None]:
    """Make one line of the many errors that libraries have for a full disk or a quota.

    Raises:
        UserError: with what was written before.
    """
    try:
        yield
    except OSError as error:
        if not of_full_disk(error):
            raise
        raise full_disk(folder) from error


def full_disk(folder: Path) -> UserError:
    """What the user is told when a folder takes no more."""
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return UserError(
        str(folder),
        f"got a full disk after {written:,} bytes, expected room for more",
        "free some and run the same command again",
    )
