"""What a user sees of a running training, and what it is asked for: to save, or to save and stop.

A request is a file in the run's folder, or an object below its URL, so that anyone can make one: a
user with `touch`, and the driver or the workflow on a signal. It is removed once the checkpoint is
saved. Searches make theirs in the folder of a fingerprint, for that training alone.
"""

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tqdm import tqdm

from moray.background import call_repeatedly, in_thread
from moray.console import say, terminal
from moray.lines import Follower
from moray.storage.open import open_records
from moray.train.history import HISTORY

_POLL_SECONDS = 0.5
# Plain lines end up in logs of batch systems: about twenty per run are enough.
_PLAIN_LINES = 20
# Short enough for 80 columns; the learning rate is in the history.
_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt}{postfix}"
_ON_BAR = {"loss": "loss", "validation loss": "validation", "left": "left", "mfu": "mfu"}

Result = TypeVar("Result")
Judge = Callable[[Path], bool]
"""Reads a history, which may not be there yet; says whether to stop the training."""


class Request(IntEnum):
    """Kinds of request; the name of the file is the name in lower case."""

    NONE = 0
    SAVE = 1
    LEAVE = 2
    """Of a notice, so never a file: save a checkpoint and start again on other nodes."""
    PRUNE = 3
    """Of a search: save a checkpoint and stop, because other settings are better."""
    STOP = 4


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
            last_modified = self._records.last_modified
            there = (kind for kind in self._kinds if last_modified(_name(kind)) is not None)
            self._seen, self._looked = next(there, Request.NONE), time.monotonic()
        return self._seen

    def ask(self, request: Request) -> None:
        """Make a request, possibly before the run's folder exists."""
        self._records.write(_name(request), b"")
        self._looked = -math.inf

    def done(self, request: Request) -> None:
        self._records.remove(_name(request))
        self._looked = -math.inf

    def forget(self, before: float) -> None:
        """Remove requests made before a time, in seconds since the epoch."""
        for request in self._kinds:
            time_of_request = self._records.last_modified(_name(request))
            if time_of_request is not None and time_of_request < before:
                self.done(request)


def prunes_of(place: str | Path) -> Requests:
    """The requests of a search to one of its trainings, in the folder of the fingerprint."""
    return Requests(place, kinds=(Request.PRUNE,))


def _name(request: Request) -> str:
    return request.name.lower()


@contextmanager
def stop_on_signals(requests: Requests, run: str) -> Iterator[None]:
    """During the body, SIGTERM and SIGINT request `STOP`; a second SIGINT interrupts at once.

    Raises:
        KeyboardInterrupt: at the second SIGINT.
    """

    def ask(number: int, frame: Any) -> None:
        # Ray's handler, which calls this one, has set an alarm that aborts the process after 3 s.
        signal.alarm(0)
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


def run_outside_main_thread(function: Callable[[], Result]) -> Result:
    """Call a function in a thread, where libraries can't replace the signal handlers.

    The processes that it starts block SIGTERM (on Linux). Batch systems send it to every process of
    a job, and workers must live until this process has asked them to save and stop.

    Raises:
        Exception: what the function raised.
    """

    def call() -> Result:
        if sys.platform == "linux":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        return function()

    return in_thread(call).result()


@contextmanager
def ask_judge(judge: Judge, history: Path, requests: Requests) -> Iterator[None]:
    """Have a history judged while the body trains, and once more at its end."""

    def look() -> None:
        if judge(history):
            requests.ask(Request.PRUNE)

    try:
        with call_repeatedly(look, _POLL_SECONDS):
            yield
    finally:
        judge(history)
        # The training may have ended before it saw the last one.
        requests.done(Request.PRUNE)


@contextmanager
def show_progress(work: Path, run: str) -> Iterator[None]:
    """Follow a run's history while the body trains it."""
    display = _Bar(run) if terminal().isatty() else _Lines(run)
    follower = Follower(work / HISTORY)
    # Shown by an earlier start.
    follower.look()

    def show() -> None:
        # A resumed run drops the lines after its checkpoint; earlier ones were already shown.
        lines, _ = follower.look()
        for line in lines:
            display.show(json.loads(line))

    try:
        with call_repeatedly(show, _POLL_SECONDS):
            yield
    finally:
        show()
        display.close()


class _Bar:
    def __init__(self, run: str) -> None:
        self._run = run
        self._bar: tqdm[NoReturn] | None = None
        self._facts: dict[str, str] = {}

    def show(self, line: dict[str, Any]) -> None:
        if "note" in line:
            tqdm.write(f"{self._run}  {line['note']}", file=terminal())
            return
        if self._bar is None:
            self._bar = tqdm(
                desc=self._run,
                bar_format=_BAR,
                initial=line["step"],
                total=line["num_steps"],
                file=terminal(),
                dynamic_ncols=True,
            )
        self._facts |= _facts(line)
        first = {_ON_BAR[name]: self._facts[name] for name in _ON_BAR if name in self._facts}
        rest = {name: value for name, value in self._facts.items() if name.endswith("/s")}
        figures = (f"{name} {value}" for name, value in (first | rest).items())
        self._bar.set_postfix_str(", ".join(figures), refresh=False)
        self._bar.update(line["step"] - self._bar.n)
        self._bar.refresh()

    def close(self) -> None:
        if self._bar:
            self._bar.close()


class _Lines:
    def __init__(self, run: str) -> None:
        self._run = run
        self._next = 0.0

    def show(self, line: dict[str, Any]) -> None:
        if "note" in line:
            say(f"{self._run}  {line['note']}")
            return
        share = line["step"] / line["num_steps"]
        if share < self._next and "eval_loss" not in line:
            return
        if "eval_loss" not in line:
            self._next = share + 1 / _PLAIN_LINES
        facts = "  ".join(f"{name} {value}" for name, value in _facts(line).items())
        say(f"{self._run}  step {line['step']}/{line['num_steps']}  {facts}")

    def close(self) -> None:
        """Nothing to do: each line is complete."""


def _facts(line: dict[str, Any]) -> dict[str, str]:
    if "eval_loss" in line:
        return {"validation loss": f"{line['eval_loss']:.4f}"}
    left = (line["num_steps"] - line["step"]) * line["step_seconds"]
    mfu = {"mfu": f"{line['mfu']:.0%}"} if "mfu" in line else {}
    return {
        "loss": f"{line['loss']:.4f}",
        "lr": f"{line['learning_rate']:.2e}",
        **_speed(line),
        **mfu,
        "left": f"{int(left) // 60}:{int(left) % 60:02d}",
    }


def _speed(line: dict[str, Any]) -> dict[str, str]:
    suffix = "_per_second"
    name = next(key for key in line if key.endswith(suffix))
    return {f"{name.removesuffix(suffix)}/s": f"{line[name]:,.0f}"}
