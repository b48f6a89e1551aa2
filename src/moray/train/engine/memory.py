"""Settings of a worker's memory allocator and garbage collector."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, instead of returning it and allocating it again at each step.

    New memory costs a page fault per 4 KB, which took a quarter of the time of a step on a CPU.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TOP_PAD, 64 * 2**20)


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection during the body."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def collected_when_asked() -> Iterator[Callable[[], None]]:
    """Disable automatic garbage collection during the body, where workers would wait for it.

    Yields:
        A function that collects garbage. It skips objects from before the body and from before its
        first call: those left by compilation would take a tenth of a second each time.
    """
    called = False

    def collect() -> None:
        nonlocal called
        gc.collect()
        if not called:
            gc.freeze()
        called = True

    gc.collect()
    gc.freeze()
    try:
        with uncollected():
            yield collect
    finally:
        gc.unfreeze()
