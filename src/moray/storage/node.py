"""Folders on this machine for what comes from an object store and goes there."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from moray.errors import UserError


def scratch() -> Path:
    """A folder for this user alone.

    Raises:
        UserError: if another user has made a folder of that name.
    """
    folder = Path(tempfile.gettempdir(), f"moray-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UserError(
            str(folder), "belongs to another user", "set TMPDIR to a folder of your own"
        )
    return folder


def once_a_node(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder unless another process on this machine did; it is whole or not there.

    Args:
        folder: the folder, named after its content.
        fill: called with an empty folder that takes its place afterwards.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            temporary = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            fill(temporary)
            temporary.rename(folder)
    return folder
