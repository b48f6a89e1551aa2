"""Room on the disk: asked for before writing, and told of when it runs out."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from moray.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ZEROS = bytes(2**20)


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


def try_room(folder: Path, needed: int) -> None:
    """Write so many bytes to a folder's disk and remove them.

    Raises:
        OSError: what a writer would have got, where it keeps that to itself.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        for start in range(0, needed, len(_ZEROS)):
            file.write(_ZEROS[: needed - start])
        file.flush()


def of_full_disk(error: Exception) -> bool:
    """Whether an error is that of a full disk or a quota."""
    if isinstance(error, SafetensorError):
        return any(f"os error {number}" in str(error) for number in _FULL)
    return isinstance(error, OSError) and error.errno in _FULL


@contextmanager
def telling_of_full_disk(folder: Path) -> Iterator[None]:
    """Make one line of the many errors that libraries have for a full disk or a quota.

    Raises:
        UserError: with what was written before.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not of_full_disk(error):
            raise
        raise full_disk(folder) from error


def full_disk(folder: Path) -> UserError:
    """What the user is told when a folder takes no more."""
    written = 0
    for path in folder.rglob("*"):
        # What failed is being cleared away, perhaps by others.
        with suppress(FileNotFoundError):
            written += path.stat().st_size if path.is_file() else 0
    return UserError(
        str(folder),
        f"got a full disk after {written:,} bytes, expected room for more",
        "free some and run the same command again",
    )
