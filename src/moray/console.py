"""Messages to the user while a stage runs, on the terminal and in the log.

A stage redirects its standard streams to its log, because libraries print a lot. This module keeps
the original stream to the terminal.
"""

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, TypeVar

from tqdm import tqdm

from moray.background import call_repeatedly

Item = TypeVar("Item")

_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_OF_SILENCE = 5.0

_terminal: TextIO = sys.stderr
# When the user last saw something, and what is done since, in words.
_shown_at, _doing = time.monotonic(), ""


def say(line: str) -> None:
    """Print a line to the terminal and to the log."""
    print(line, file=_terminal, flush=True)
    if _terminal is not sys.stderr:
        print(line, file=sys.stderr, flush=True)
    _see("")


def wait_for(what: str) -> None:
    """Remember what takes a while from now on, for `break_silence`; until the next line."""
    global _doing
    _doing = f"waiting for {what}"


@contextmanager
def break_silence(name: str) -> Iterator[None]:
    """During the body, tell the user what a stage does when nothing else was said for a while.

    Args:
        name: the stage and what it is of.
    """
    with call_repeatedly(_Silence(name).look, 1):
        yield


class _Silence:
    """Breaks the silence of a stage, more and more rarely."""

    def __init__(self, name: str) -> None:
        self._name, self._began = name, time.monotonic()
        self._longest = _SECONDS_OF_SILENCE

    def look(self) -> None:
        now = time.monotonic()
        silent = now - _shown_at
        if silent < _SECONDS_OF_SILENCE:
            self._longest = _SECONDS_OF_SILENCE
        elif silent >= self._longest:
            self._longest = silent + min(silent, _SECONDS_BETWEEN_LINES)
            # Not in the log, where it would stand between what libraries print.
            line = f"{self._name}: {_doing or 'at work'} ({now - self._began:.0f} s)"
            print(line, file=_terminal, flush=True)


def _see(doing: str) -> None:
    """Note that the user has just seen something, and what is done from now on."""
    global _shown_at, _doing
    _shown_at, _doing = time.monotonic(), doing


def terminal() -> TextIO:
    """The stream that the user sees."""
    return _terminal


def progress(
    items: Iterable[Item],
    label: str,
    unit: str,
    total: float | None = None,
    start: float = 0,
    units_of: Callable[[Item], float] = lambda item: 1,
) -> Iterator[Item]:
    """Iterate over items and show progress: a bar on a terminal, otherwise a line now and then.

    Args:
        start: how many of the total were done before.
        units_of: number of units of an item.
    """
    global _doing, _shown_at
    if _terminal.isatty():
        options = {"desc": label, "unit": unit, "file": _terminal, "leave": False}
        done = start
        # Whole numbers, because a bar shows all digits of others.
        with tqdm(**options, total=round(total or 0) or None, initial=round(start)) as bar:
            for item in items:
                # A bar is never silent.
                _shown_at = math.inf
                yield item
                done += units_of(item)
                bar.update(round(done) - bar.n)
        _see("")
        return
    of_all = f" of {total:,.0f}" if total else ""
    plural = f"{unit}es" if unit.endswith("ch") else unit if unit == "MB" else f"{unit}s"
    began = shown_at = time.monotonic()
    number = start
    for item in items:
        yield item
        number += units_of(item)
        _doing = f"{number:,.0f}{of_all} {plural}"
        now = time.monotonic()
        if now - shown_at > _SECONDS_BETWEEN_LINES:
            rate = (number - start) / (now - began)
            left = f", {tqdm.format_interval((total - number) / rate)} left" if total else ""
            say(f"{label}: {number:,.0f}{of_all} {plural}, {rate:,.3g}/s{left}")
            shown_at = now


@contextmanager
def redirect_streams(log: Path) -> Iterator[None]:
    """Redirect this process's standard output and error to a file, including those of C code."""
    global _terminal
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptors = os.dup(1), os.dup(2)
    with log.open("a") as file, os.fdopen(os.dup(2), "w") as user:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        previous, _terminal = _terminal, user
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # Output of C code may still be in its own buffer.
            ctypes.CDLL(None).fflush(None)
            _terminal = previous
            os.dup2(descriptors[0], 1)
            os.dup2(descriptors[1], 2)
            os.close(descriptors[0])
            os.close(descriptors[1])
