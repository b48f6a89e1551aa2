"""Locks that the kernel takes back from a process that dies, however it dies."""

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
    """Hold a run for this process.

    Raises:
        UserError: naming who holds it, if another process does; or if it can't be held there.
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / "driver.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = json.loads(file.read() or "{}")
            raise UserError(
                str(work),
                f"got a run that process {holder.get('pid')} on {holder.get('host')} has been "
                f"training since {holder.get('since')}, expected a free one",
                "wait for it or end it",
            ) from None
        except OSError as error:
            raise UserError(
                str(work),
                f"got a file system without locks ({error.strerror}), expected the kernel's, which "
                "keep a run from being trained twice at a time",
                "choose another ray.storage_path",
            ) from error
        file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}))
        file.flush()
        yield


@contextmanager
def sole_writer(work: Path) -> Iterator[None]:
    """Wait until no worker of an earlier attempt, its driver dead, still writes to a run."""
    with (work / "writer.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
