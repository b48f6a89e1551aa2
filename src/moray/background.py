"""Threads beside the one that started them, and processes that end with their parent."""

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_PR_SET_PDEATHSIG = 1

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def call_repeatedly(function: Callable[[], object], seconds: float) -> Iterator[None]:
    """During the body, call a function in a thread, with a pause before each call.

    What it raises is written to standard error, if it isn't what it raised the last time.
    """
    end = threading.Event()

    def repeat() -> None:
        last_error = ""
        while not end.wait(seconds):
            try:
                function()
            except Exception as error:
                # The next call may succeed.
                if repr(error) != last_error:
                    traceback.print_exc()
                last_error = repr(error)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def in_thread(function: Callable[[], Result]) -> Future[Result]:
    """The result of a function called in a thread, which doesn't keep the process from ending."""
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items; while one is used, the next one is made in a thread."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends for any reason (Linux only)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
