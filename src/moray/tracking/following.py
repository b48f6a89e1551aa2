"""Follow a run under way with a process for each of its trackers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from moray.console import say
from moray.tracking import process
from moray.tracking.interface import TrackedRun

# At the end of a run, a tracker without a sign of life for so long is ended. Importing one takes
# seconds, and more beside a training that uses all cores.
_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.5
_RUN = "tracked.json"


class Ending:
    """Tells trackers how a run has ended.

    Attributes:
        finished: whether the training is finished. Otherwise it will be resumed.
    """

    finished = False


@contextmanager
def tracked(
    trackers: Sequence[str], run: TrackedRun, work: Path, history: Path
) -> Iterator[Ending]:
    """Send a run's history to trackers during the body.

    No fault of a tracker ends or delays the run. At its end, those that have shown signs of life
    until then get some seconds for the rest; the others are ended at once, which a line reports.

    Args:
        trackers: their names.
        run: the run.
        work: its work folder.
        history: its history, which may not be there yet.
    """
    if trackers:
        (work / _RUN).write_text(json.dumps(asdict(run)))
    started = [_Process(name, work, history) for name in trackers]
    ending = Ending()
    try:
        yield ending
    finally:
        for each in started:
            each.tell(process.FINISHED if ending.finished else "")
        if behind := [each.name for each in started if not each.ended_well()]:
            say(
                f"run {run.name}: not all metrics reached {', '.join(behind)}; the log says why, "
                "and `snakemake track` sends the rest"
            )


class _Process:
    """The process of one tracker."""

    def __init__(self, name: str, work: Path, history: Path) -> None:
        self.name = name
        self._alive = work / f"tracked-{name}"
        self._alive.touch()
        arguments = (name, os.getpid(), work / _RUN, history, self._alive)
        self._process = subprocess.Popen(
            [sys.executable, "-m", process.__name__, *map(str, arguments)],
            stdin=subprocess.PIPE,
            text=True,
            # A tracker's own processes end with it, and Ctrl-C doesn't reach it.
            start_new_session=True,
        )

    def tell(self, word: str) -> None:
        assert self._process.stdin
        # It may have crashed.
        with suppress(BrokenPipeError):
            self._process.stdin.write(word)
            self._process.stdin.close()

    def ended_well(self) -> bool:
        """Wait for the process to end while there is hope; then end it."""
        while time.time() - self._alive.stat().st_mtime < _PATIENCE_SECONDS:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_SECONDS)
                break
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait() == 0
