"""End workers that raise the same error twice, since it doesn't go away by itself."""

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch.distributed import DistError

from moray.errors import UserError, first_line
from moray.provenance.manifest import write_json
from moray.workers.memory import is_out_of_memory

# The files of the errors of this attempt, and of those of earlier ones, by rank.
_RAISED, _EARLIER = "raised-", "raised-earlier-"
# Errors of code. An `OSError`, say, may come from a disk or a network that recovers.
_OF_CODE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
# Words in messages of a `RuntimeError` about other workers, which may be lost.
_OF_MACHINES = (
    *("gloo", "nccl", "connection", "socket", "broken pipe"),
    *("cudnn", "cublas", "start new thread", "stale file", "write failed"),
)


def error_file_name(rank: int) -> str:
    """Name of the file with the error that a worker raised in this attempt."""
    return f"{_RAISED}{rank}.json"


@contextmanager
def end_on_repeated_error(folder: Path, rank: int) -> Iterator[None]:
    """Record an error of code in the body; what an earlier attempt has raised becomes a fault.

    Errors with notes are the same if their notes are.

    Args:
        folder: of this start of the workers.

    Raises:
        UserError: if an error is raised again, by this worker or another.
    """
    own = folder / error_file_name(rank)
    if own.exists():
        own.replace(folder / f"{_EARLIER}{rank}.json")
    try:
        yield
    except _OF_CODE as error:
        if _is_of_machine(error):
            raise
        description = _description(error)
        earlier = [json.loads(file.read_text()) for file in folder.glob(f"{_EARLIER}*.json")]
        with suppress(OSError):
            write_json(own, description)
        if description not in earlier:
            raise
        # The traceback of a fault isn't printed elsewhere.
        traceback.print_exc(file=sys.stderr)
        raise _fault(description, f"worker {rank}, twice in the same way") from error


def last_error(folder: Path) -> UserError | None:
    """The error of the last attempt, if a worker raised one of code."""
    for file in sorted(folder.glob(f"{_RAISED}[0-9]*.json")):
        rank = file.stem.removeprefix(_RAISED)
        return _fault(json.loads(file.read_text()), f"worker {rank}")
    return None


def forget_errors(folder: Path) -> None:
    """Remove what earlier starts have recorded."""
    for file in folder.glob(f"{_RAISED}*.json"):
        file.unlink()


def _is_of_machine(error: Exception) -> bool:
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    if isinstance(error, torch.AcceleratorError):
        # The message is that of an index that is out of range.
        return "device-side assert" not in text
    is_lost = any(word in text.lower() for word in _OF_MACHINES)
    return is_lost or isinstance(error, DistError) or is_out_of_memory(error)


def _description(error: Exception) -> list[str]:
    text = first_line(error) if str(error).strip() else "no message"
    return [type(error).__name__, text, *getattr(error, "__notes__", [])]


def _fault(description: list[str], who: str) -> UserError:
    name, text, *notes = description
    return UserError(
        name,
        f"{text} ({'; '.join([who, *notes])})",
        "correct its cause (the traceback is in the log), and run the same command again",
    )
