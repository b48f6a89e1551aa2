"""Recognising that memory ran out, and using less of it."""

import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

# How PyTorch's allocators on a CPU say it; on a GPU they have an exception.
_MESSAGES = ("can't allocate memory", "not enough memory", "std::bad_alloc")
_A_FEW_MEGABYTES = 8 * 2**20


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory, of the machine or of a GPU, ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    return any(text in str(error) for text in _MESSAGES) or not _memory_is_left()


def _memory_is_left() -> bool:
    """Whether a few megabytes can be had; oneDNN, for one, doesn't say what it lacks."""
    try:
        bytearray(_A_FEW_MEGABYTES)
    except MemoryError:
        return False
    return True


def in_parts_that_fit(
    function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]
) -> list[Result]:
    """Call a function on items, on half of them at a time where memory runs out.

    Args:
        function: of any number of items.
        items: one or more.

    Returns:
        The results of all calls, in the order of the items.

    Raises:
        Exception: what the function raised, if memory is too small even for one item.
    """
    try:
        return function(items)
    except Exception as error:
        if len(items) == 1 or not is_out_of_memory(error):
            raise
    # After the handler, because the error holds on to what the failed call has allocated.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(items) // 2
    return [
        *in_parts_that_fit(function, items[:middle]),
        *in_parts_that_fit(function, items[middle:]),
    ]
