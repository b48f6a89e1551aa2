"""Requests to a running training: save a checkpoint, or save a checkpoint and stop.

A request is a file in the run's folder, or an object below its URL, so that anyone can make one: a
user with `touch`, and the driver or the workflow on a signal. It is removed once the checkpoint is
saved. Searches make theirs in the folder of a fingerprint, for that training alone.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

from moray.background import in_thread
from moray.console import say
from moray.storage.opened import open_records

Result = TypeVar("Result")


class Request(IntEnum):
    """Kinds of request; the name of the file is the name in lower case."""

    NONE = 0
    SAVE = 1
    PRUNE = 2
    """Of a search: save a checkpoint and stop, because other settings are better."""
    STOP = 3


class Requests:
    """The requests of a run."""

    def __init__(
        self, place: str | Path, kinds: Sequence[Request] = (Request.STOP, Request.SAVE)
    ) -> None:
        """Look for requests.

        Args:
            place: the run's folder, the parent of its fingerprints' folders; or one of these.
            kinds: what can be asked for there, the more urgent first.
        """
        self._kinds = kinds
        self._records = open_records(place)
        self._seen, self._looked = Request.NONE, -math.inf

    def pending(self) -> Request:
        """The pending request; the most urgent if there are several."""
        if time.monotonic() - self._looked >= self._records.poll_seconds:
            changed = self._records.changed
            there = (kind for kind in self._kinds if changed(_name(kind)) is not None)
            self._seen, self._looked = next(there, Request.NONE), time.monotonic()
        return self._seen

    def ask(self, request: Request) -> None:
        """Make a request, possibly before the run's folder exists."""
        self._records.write(_name(request), b"")
        self._looked = -math.inf

    def done(self, request: Request) -> None:
        """Remove a request."""
        self._records.remove(_name(request))
        self._looked = -math.inf

    def forget(self, before: float) -> None:
        """Remove requests made before a time, in seconds since the epoch."""
        for request in self._kinds:
            made = self._records.changed(_name(request))
            if made is not None and made < before:
                self.done(request)


def prunes_of(place: str | Path) -> Requests:
    """The requests of a search to one of its trainings, in the folder of the fingerprint."""
    return Requests(place, kinds=(Request.PRUNE,))


def _name(request: Request) -> str:
    return request.name.lower()


@contextmanager
def stopped_by_signals(requests: Requests, run: str) -> Iterator[None]:
    """During the body, SIGTERM and SIGINT request `STOP`; a second SIGINT interrupts at once.

    Raises:
        KeyboardInterrupt: at the second SIGINT.
    """

    def ask(number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT and requests.pending() is Request.STOP:
            raise KeyboardInterrupt
        requests.ask(Request.STOP)
        say(f"run {run}: {name}, saving a checkpoint before stopping; Ctrl-C stops at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def beside_signals(function: Callable[[], Result]) -> Result:
    """Call a function in a thread, where libraries can't replace the signal handlers.

    Raises:
        Exception: what the function raised.
    """
    return in_thread(function).result()
