"""What a training is asked for while it runs: a checkpoint now, or a checkpoint and its end.

A request is a file in the run's folder, because everybody can make one: a person by `touch`, the
driver when it gets a signal, the workflow when it does. The file goes once the checkpoint is there.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

from moray.console import say

Result = TypeVar("Result")


class Request(IntEnum):
    """What can be asked for; the file has the name in small letters."""

    NONE = 0
    SAVE = 1
    STOP = 2


class Requests:
    """The requests of a run."""

    def __init__(self, folder: Path) -> None:
        """Look for requests in a folder; the run's own, above those of its fingerprints."""
        self._folder = folder

    def pending(self) -> Request:
        """What is asked for; the end, if both are."""
        for request in (Request.STOP, Request.SAVE):
            if self._file(request).exists():
                return request
        return Request.NONE

    def ask(self, request: Request) -> None:
        """Make a request, perhaps before the run's folder is there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file(request).touch()

    def done(self, request: Request) -> None:
        """Take a request back."""
        self._file(request).unlink(missing_ok=True)

    def forget(self, before: float) -> None:
        """Take back what was asked for before a time, in seconds since the epoch."""
        for request in (Request.SAVE, Request.STOP):
            file = self._file(request)
            if file.exists() and file.stat().st_mtime < before:
                file.unlink()

    def _file(self, request: Request) -> Path:
        return self._folder / request.name.lower()


@contextmanager
def stopped_by_signals(requests: Requests, run: str) -> Iterator[None]:
    """During the body, SIGTERM and SIGINT ask for a checkpoint and the end; a second SIGINT ends.

    Raises:
        KeyboardInterrupt: at the second SIGINT.
    """

    def ask(number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT and requests.pending() is Request.STOP:
            raise KeyboardInterrupt
        requests.ask(Request.STOP)
        say(f"run {run}: {name}, saving a checkpoint before the end; Ctrl-C ends it at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def beside_signals(function: Callable[[], Result]) -> Result:
    """Call a function in a thread, so that libraries in it leave the handlers of signals alone.

    Raises:
        Exception: what the function raised.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    # A daemon: an interrupted driver doesn't wait for it.
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
