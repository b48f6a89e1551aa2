"""Errors that are raised again by the next attempt."""

from pathlib import Path

import pytest
import torch
from torch.distributed import DistBackendError

from moray.errors import UserError
from moray.workers.repeats import end_on_repeated_error, forget_errors, last_error


def attempt(folder: Path, error: Exception, rank: int = 0, note: str | None = None) -> Exception:
    """What a worker raises whose entry point raises an error."""
    if note:
        error.add_note(note)
    with pytest.raises(Exception) as caught, end_on_repeated_error(folder, rank):  # noqa: PT011 - any
        raise error
    return caught.value


def index_error() -> IndexError:
    return IndexError("index 7 is out of range\nin a tensor")


def test_an_error_that_is_raised_again_is_a_fault(tmp_path: Path) -> None:
    first = index_error()
    assert attempt(tmp_path, first) is first
    again = attempt(tmp_path, index_error())
    assert isinstance(again, UserError)
    assert str(again) == (
        "IndexError: index 7 is out of range (worker 0, twice in the same way); correct its cause "
        "(the traceback is in the log), and run the same command again"
    )


def test_the_first_worker_to_raise_it_may_be_another(tmp_path: Path) -> None:
    attempt(tmp_path, index_error(), rank=1)
    with end_on_repeated_error(tmp_path, 1):
        assert isinstance(attempt(tmp_path, index_error(), rank=0), UserError)


def test_an_attempt_between_that_was_lost_is_no_progress(tmp_path: Path) -> None:
    attempt(tmp_path, index_error())
    attempt(tmp_path, ConnectionResetError("reset"))
    assert isinstance(attempt(tmp_path, index_error()), UserError)


@pytest.mark.parametrize(
    ("other", "note"),
    [
        (IndexError("index 8 is out of range"), "step 3"),
        (KeyError("index 7 is out of range"), "step 3"),
        (IndexError("index 7 is out of range"), "step 4"),
        (IndexError("index 7 is out of range"), None),
    ],
)
def test_another_error_or_one_after_progress_is_not_the_same(
    tmp_path: Path, other: Exception, note: str | None
) -> None:
    attempt(tmp_path, index_error(), note="step 3")
    assert attempt(tmp_path, other, note=note) is other


@pytest.mark.parametrize(
    "error",
    [
        OSError("stale file handle"),
        ConnectionError("lost"),
        MemoryError(),
        RuntimeError("[third_party/gloo/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("can't start new thread"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte"),
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        DistBackendError("NCCL error"),
        UserError("a.key", "is wrong", "set it right"),
    ],
)
def test_what_the_machine_may_have_caused_is_left_as_it_is(
    tmp_path: Path, error: Exception
) -> None:
    for _ in range(3):
        assert attempt(tmp_path, error) is error
    assert last_error(tmp_path) is None


def test_an_index_beyond_an_embedding_on_a_gpu_is_of_code(tmp_path: Path) -> None:
    text = "CUDA error: device-side assert triggered"
    attempt(tmp_path, torch.AcceleratorError(text))
    assert isinstance(attempt(tmp_path, torch.AcceleratorError(text)), UserError)


def test_the_error_of_the_last_attempt_is_known_until_it_is_forgotten(tmp_path: Path) -> None:
    assert last_error(tmp_path) is None
    attempt(tmp_path, ZeroDivisionError(), rank=3, note="the last known step is 5")
    assert str(last_error(tmp_path)) == (
        "ZeroDivisionError: no message (worker 3; the last known step is 5); correct its cause "
        "(the traceback is in the log), and run the same command again"
    )
    attempt(tmp_path, OSError("gone"), rank=3)
    assert last_error(tmp_path) is None
    attempt(tmp_path, ZeroDivisionError(), rank=3)
    forget_errors(tmp_path)
    assert list(tmp_path.iterdir()) == []
