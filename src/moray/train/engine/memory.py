"""How a worker keeps its main memory."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, rather than give it back and fetch it anew at each step.

    Fresh memory costs a page fault per 4 KB: a quarter of the time of a step on a CPU.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TOP_PAD, 64 * 2**20)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector out of the body."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def collected_when_asked() -> Iterator[Callable[[], None]]:
    """Keep the garbage collector out of the body's steps, where workers would wait for it.

    Yields:
        What collects garbage. It looks neither at what was there before the body, nor at what was
        when it was first called: what compiling leaves would take it a tenth of a second each time.
    """
    asked = False

    def collect() -> None:
        nonlocal asked
        gc.collect()
        if not asked:
            gc.freeze()
        asked = True

    gc.collect()
    gc.freeze()
    try:
        with uncollected():
            yield collect
    finally:
        gc.unfreeze()
