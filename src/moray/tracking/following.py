"""Send the history of a run under way to its trackers, with a process for each of them.

A tracker that hangs or crashes takes its process with it, and nothing else. The driver ends the
standard input of the process: after the word `finished`, if the training is.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from moray.background import die_with_parent, in_thread
from moray.console import say
from moray.lines import Follower
from moray.tracking.interface import TrackedRun, Tracker, open_tracker, points_of

FINISHED = "finished"
_RUN = "tracked.json"
_POLL_SECONDS = 0.5
# At the end of a run, a tracker without a sign of life for so long is ended. Importing one takes
# seconds, and more beside a training that uses all cores.
_PATIENCE_SECONDS = 30.0
# These are for the process of a tracker.
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 10.0
_LINES = 500


class Ending:
    """Tells trackers how a run has ended: it is finished, or it will be resumed."""

    finished = False


@contextmanager
def follow_run(
    trackers: Sequence[str], run: TrackedRun, work: Path, history: Path
) -> Iterator[Ending]:
    """Send a run's history to trackers during the body.

    No fault of a tracker ends or delays the run. At its end, those that have shown signs of life
    until then get some seconds for the rest; the others are ended at once, which a line reports.
    """
    if trackers:
        (work / _RUN).write_text(json.dumps(asdict(run)))
    processes = [_Process(name, work, history) for name in trackers]
    ending = Ending()
    try:
        yield ending
    finally:
        for each in processes:
            each.tell(FINISHED if ending.finished else "")
        if behind := [each.name for each in processes if not each.wait_or_kill()]:
            say(
                f"run {run.name}: not all metrics reached {', '.join(behind)}; the log says why, "
                "and `snakemake track` sends the rest"
            )


class _Process:
    def __init__(self, name: str, work: Path, history: Path) -> None:
        self.name = name
        self._alive = work / f"tracked-{name}"
        self._alive.touch()
        arguments = (name, os.getpid(), work / _RUN, history, self._alive)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *map(str, arguments)],
            stdin=subprocess.PIPE,
            text=True,
            # A tracker's own processes end with it, and Ctrl-C doesn't reach it.
            start_new_session=True,
        )

    def tell(self, word: str) -> None:
        assert self._process.stdin
        # The process may have crashed.
        with suppress(BrokenPipeError):
            self._process.stdin.write(word)
            self._process.stdin.close()

    def wait_or_kill(self) -> bool:
        """Wait for the process to end while there is hope; then end it."""
        while time.time() - self._alive.stat().st_mtime < _PATIENCE_SECONDS:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_SECONDS)
                break
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait() == 0


def follow(
    open_run: Callable[[], AbstractContextManager[Tracker]],
    history: Path,
    outcome: Future[str],
    confirm: Callable[[], None],
) -> None:
    """Send a history to a tracker until its run ends; after a fault, begin again.

    Args:
        outcome: set when the run has ended, to `FINISHED` or something else.
        confirm: called whenever the tracker has everything.

    Raises:
        Exception: of the tracker, after the end of the run.
    """
    while True:
        try:
            if _send_until_end(open_run, history, outcome, confirm):
                return
        except Exception:
            if outcome.done():
                raise
            traceback.print_exc()
            _wait(outcome, _RETRY_SECONDS)


def _send_until_end(
    open_run: Callable[[], AbstractContextManager[Tracker]],
    history: Path,
    outcome: Future[str],
    confirm: Callable[[], None],
) -> bool:
    """Send lines until the run ends; False if it dropped some, to go on from a checkpoint."""
    follower = Follower(history)
    with open_run() as tracker:
        while True:
            has_ended = outcome.done()
            lines, rewritten = follower.look()
            if rewritten:
                return False
            send(tracker, lines, confirm)
            if has_ended:
                if outcome.result() == FINISHED:
                    tracker.finish()
                return True
            _wait(outcome, _LOOK_SECONDS)


def send(tracker: Tracker, lines: Sequence[str], confirm: Callable[[], None]) -> None:
    """Send lines of a history, in pieces."""
    for start in range(0, len(lines), _LINES):
        tracker.log(list(points_of(lines[start : start + _LINES])))
        confirm()
    confirm()


def _wait(outcome: Future[str], seconds: float) -> None:
    with suppress(TimeoutError):
        outcome.result(timeout=seconds)


def _main(name: str, driver: int, run: Path, history: Path, alive: Path) -> None:
    die_with_parent()
    if os.getppid() != driver:
        # The driver has died already.
        return
    # The cores are for training.
    os.nice(10)
    outcome = in_thread(sys.stdin.read)
    facts = TrackedRun(**json.loads(run.read_text()))
    # The driver sees by the time of this file that the tracker is alive.
    follow(lambda: open_tracker(name, facts), history, outcome, alive.touch)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), *map(Path, sys.argv[3:]))
