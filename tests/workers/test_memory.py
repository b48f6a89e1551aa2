import errno
from collections.abc import Sequence

import pytest
import torch

from moray.workers.memory import is_out_of_memory, split_on_out_of_memory


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a memory object"), True),
        (RuntimeError("could not create a primitive descriptor for the matmul primitive."), False),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOENT, "No such file"), False),
        (RuntimeError("shapes don't match"), False),
        (ValueError("not enough memory"), False),
    ],
)
def test_errors_of_memory_are_reported_from_others(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize("most", [1, 2, 3, 7, 20])
def test_items_are_taken_in_parts_that_fit_and_in_their_order(most: int) -> None:
    sizes = []

    def squares(numbers: Sequence[int]) -> list[int]:
        if len(numbers) > most:
            raise torch.OutOfMemoryError
        sizes.append(len(numbers))
        return [number**2 for number in numbers]

    assert split_on_out_of_memory(squares, range(7)) == [number**2 for number in range(7)]
    assert max(sizes) <= most


@pytest.mark.parametrize("error", [MemoryError("one is too many"), ValueError("odd")])
def test_what_smaller_parts_would_not_help_is_raised(error: Exception) -> None:
    sizes = []

    def fail(numbers: Sequence[int]) -> list[int]:
        sizes.append(len(numbers))
        raise error

    with pytest.raises(type(error), match=str(error)):
        split_on_out_of_memory(fail, range(4))
    assert sizes == ([4, 2, 1] if isinstance(error, MemoryError) else [4])
