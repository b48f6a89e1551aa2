"""Stop a trial of a search early, because of what its history says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.background import repeated
from moray.train.supervision.requests import Request, Requests

_POLL_SECONDS = 0.5

Judge = Callable[[Path], bool]
"""Reads a history, which may not be there yet; says whether to stop the training."""


@contextmanager
def judged(judge: Judge, history: Path, requests: Requests) -> Iterator[None]:
    """Have a history judged while the body trains, and once more at its end.

    Args:
        judge: what reads it.
        history: the file.
        requests: of this training alone.
    """

    def look() -> None:
        if judge(history):
            requests.ask(Request.PRUNE)

    try:
        with repeated(look, _POLL_SECONDS):
            yield
    finally:
        judge(history)
        # The training may have ended before it saw the last one.
        requests.done(Request.PRUNE)
