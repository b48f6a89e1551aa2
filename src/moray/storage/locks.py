"""Who holds the lock that keeps a run from being trained twice at the same time."""

import os
import socket
import time

from moray.errors import UserError


def this_process() -> dict[str, str | int]:
    """What names the holder of a lock to users."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}


def taken(place: str, holder: dict[str, str | int]) -> UserError:
    """The error if another process, which `this_process` has named there, holds a lock."""
    return UserError(
        place,
        f"process {holder.get('pid')} on {holder.get('host')} has been training this run "
        f"since {holder.get('since')}",
        "wait for it or stop it",
    )
