"""Recognise out-of-memory errors, retry with less memory, and keep what is freed."""

import ctypes
import errno
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

# Messages of PyTorch's CPU allocators; the GPU allocator raises an exception of its own type.
_MESSAGES = ("can't allocate memory", "not enough memory", "std::bad_alloc")
# Whole messages of oneDNN, which compiles code for each shape; of shapes that it doesn't support,
# it says more.
_OF_ONEDNN = {f"could not create a {what}" for what in ("memory", "memory object", "primitive")}
_A_FEW_MEGABYTES = 8 * 2**20
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, instead of returning it and allocating it again at each step.

    New memory costs a page fault per 4 KB, which took a quarter of the time of a step on a CPU.
    Call it before threads start: those that allocated already keep arenas of their own, which
    never keep blocks over 64 MB.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TOP_PAD, 64 * 2**20)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error was caused by a lack of memory, of the machine or of a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).strip()
    return text in _OF_ONEDNN or any(part in text for part in _MESSAGES) or not _memory_is_left()


def _memory_is_left() -> bool:
    """Whether a few megabytes can be allocated; some errors don't mention memory."""
    try:
        bytearray(_A_FEW_MEGABYTES)
    except MemoryError:
        return False
    return True


def split_on_out_of_memory(
    function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]
) -> list[Result]:
    """Call a function on items; if memory runs out, call it on each half of them instead.

    Raises:
        Exception: what the function raised, if memory is too small even for one item.
    """
    try:
        return function(items)
    except Exception as error:
        if len(items) == 1 or not is_out_of_memory(error):
            raise
    # After the handler, because the error keeps the memory of the failed call alive.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(items) // 2
    return [
        *split_on_out_of_memory(function, items[:middle]),
        *split_on_out_of_memory(function, items[middle:]),
    ]
