"""The lock of a run in an object store, a lease: held as long as its holder renews it.

No clocks are compared: whoever wants the lock watches it for as long as the lease lasts, and takes
it over if it wasn't renewed meanwhile. Each holder gets a number, the token, which is higher than
those of all before. A holder that was cut off and lives on doesn't know that it has lost the lock;
the token is what shows it, see `Commits`.
"""

import json
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moray.background import call_repeatedly
from moray.console import say
from moray.storage.folder import held_lock, this_process
from moray.storage.objects import Objects

_LEASE = "lease.json"
_RENEWALS = 3
_LOOKS = 10


@contextmanager
def hold_lease(objects: Objects, seconds: float) -> Iterator[int]:
    """Hold the lock of a run during the body; yields the token.

    The lock outlives a holder that died by so many seconds.

    Raises:
        UserError: if another process holds the lock, naming it.
    """
    holder = {**this_process(), "id": uuid.uuid4().hex, "seconds": seconds}
    token, version = _acquire(objects, holder)
    lease = _Lease(objects, {**holder, "token": token}, version)
    try:
        with call_repeatedly(lease.renew, seconds / _RENEWALS):
            yield token
    finally:
        lease.release()


class _Lease:
    def __init__(self, objects: Objects, holder: dict[str, Any], version: str) -> None:
        self._objects = objects
        self._holder = holder
        self._version: str | None = version
        self._renewal = 0

    def renew(self) -> None:
        if self._version is None:
            return
        self._renewal += 1
        try:
            self._write(renewal=self._renewal)
        except self._objects.errors as error:
            # The lock is lost only if someone takes it, so it is tried again.
            print(f"can't renew {self._objects.url}/{_LEASE}: {error}", file=sys.stderr)

    def release(self) -> None:
        if self._version is not None:
            # Not deleted: the next holder's token has to be higher.
            self._write(released=True)

    def _write(self, **facts: Any) -> None:
        assert self._version is not None
        content = _content({**self._holder, **facts})
        version = self._objects.replace(_LEASE, content, self._version)
        if version is None:
            # An earlier one may have been written though its answer was lost.
            current = self._objects.get(_LEASE)
            if current and json.loads(current[0]).get("id") == self._holder["id"]:
                version = self._objects.replace(_LEASE, content, current[1])
        self._version = version


def _acquire(objects: Objects, holder: dict[str, Any]) -> tuple[int, str]:
    """The token and version of a lock that is ours now."""
    current = objects.get(_LEASE)
    if current is None:
        version, token = objects.create(_LEASE, _content({**holder, "token": 1})), 1
    else:
        before = json.loads(current[0])
        if not before.get("released"):
            _watch(objects, before, current[1])
        token = before["token"] + 1
        version = objects.replace(_LEASE, _content({**holder, "token": token}), current[1])
    if version is None:
        now = objects.get(_LEASE)
        raise held_lock(objects.url, json.loads(now[0]) if now else {})
    return token, version


def _watch(objects: Objects, holder: dict[str, Any], version: str) -> None:
    """Return once a lock wasn't renewed for as long as its lease lasts; refuse it if it was."""
    seconds, deadline = holder["seconds"], time.monotonic() + holder["seconds"]
    say(
        f"{objects.url}: process {holder['pid']} on {holder['host']} was training this run; "
        f"waiting {seconds:g} s for a sign of life"
    )
    while time.monotonic() < deadline:
        time.sleep(seconds / _LOOKS)
        current = objects.get(_LEASE)
        if current is None or current[1] != version:
            raise held_lock(objects.url, holder)


def _content(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode()
