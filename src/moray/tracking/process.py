"""A process that sends the history of a run under way to one tracker.

A tracker that hangs or crashes takes this process with it, and nothing else. The driver ends the
standard input: after the word `finished`, if the training is.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from moray.background import die_with_parent, in_thread
from moray.lines import Follower
from moray.tracking.interface import TrackedRun, Tracker, points_of
from moray.tracking.trackers import open_tracker

FINISHED = "finished"
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 10.0
_LINES = 500


def follow(
    open_run: Callable[[], AbstractContextManager[Tracker]],
    history: Path,
    told: Future[str],
    confirm: Callable[[], None],
) -> None:
    """Send a history to a tracker until its run ends; after a fault, begin again.

    Args:
        open_run: opens the run in the tracker.
        history: the run's.
        told: done when the run has ended, with `FINISHED` or something else.
        confirm: called whenever the tracker has everything.

    Raises:
        Exception: of the tracker, after the end of the run.
    """
    while True:
        try:
            if _sent_to_the_end(open_run, history, told, confirm):
                return
        except Exception:
            if told.done():
                raise
            traceback.print_exc()
            _wait(told, _RETRY_SECONDS)


def _sent_to_the_end(
    open_run: Callable[[], AbstractContextManager[Tracker]],
    history: Path,
    told: Future[str],
    confirm: Callable[[], None],
) -> bool:
    """False if lines that were sent have been dropped, as when a run goes on from a checkpoint."""
    follower = Follower(history)
    with open_run() as tracker:
        while True:
            ended = told.done()
            lines, rewritten = follower.look()
            if rewritten:
                return False
            send(tracker, lines, confirm)
            if ended:
                if told.result() == FINISHED:
                    tracker.finish()
                return True
            _wait(told, _POLL_SECONDS)


def send(tracker: Tracker, lines: Sequence[str], confirm: Callable[[], None]) -> None:
    """Send lines of a history, in pieces."""
    for start in range(0, len(lines), _LINES):
        tracker.log(list(points_of(lines[start : start + _LINES])))
        confirm()
    confirm()


def _wait(told: Future[str], seconds: float) -> None:
    with suppress(TimeoutError):
        told.result(timeout=seconds)


def main(name: str, driver: int, run: Path, history: Path, alive: Path) -> None:
    """Follow a run.

    Args:
        name: the tracker.
        driver: the process that started this one.
        run: file with the `TrackedRun`.
        history: the run's.
        alive: touched whenever the tracker has everything.
    """
    die_with_parent()
    if os.getppid() != driver:
        # It had died before.
        return
    # The cores are for training.
    os.nice(10)
    told = in_thread(sys.stdin.read)
    tracked = TrackedRun(**json.loads(run.read_text()))
    follow(lambda: open_tracker(name, tracked), history, told, alive.touch)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(Path, sys.argv[3:]))
