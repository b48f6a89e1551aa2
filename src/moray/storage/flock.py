"""Locks that the kernel releases when their process dies."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.errors import UserError


@contextmanager
def sole_driver(work: Path) -> Iterator[None]:
    """Lock a run for this process.

    Raises:
        UserError: if another process has the lock, naming it; or if the file system has no locks.
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / "driver.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise held(str(work), json.loads(file.read() or "{}")) from None
        except OSError as error:
            raise UserError(
                str(work),
                f"this file system has no locks ({error.strerror}), which prevent a run from being "
                "trained twice at the same time",
                "choose another ray.storage_path",
            ) from error
        file.truncate(0)
        file.write(json.dumps(this_process()))
        file.flush()
        yield


@contextmanager
def sole_writer(work: Path) -> Iterator[None]:
    """Wait until no worker of an earlier attempt, whose driver died, writes to a run."""
    with (work / "writer.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def this_process() -> dict[str, str | int]:
    """What names the holder of a lock to users."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}


def held(place: str, holder: dict[str, str | int]) -> UserError:
    """The error for a run that another process trains."""
    return UserError(
        place,
        f"process {holder.get('pid')} on {holder.get('host')} has been training this run "
        f"since {holder.get('since')}",
        "wait for it or stop it",
    )
