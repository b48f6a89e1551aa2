"""The body of a worker, and the files by which workers and their driver know of each other.

A worker that is waiting in a collective can't receive messages through the process group, so the
first fault is a file, as are output and progress, in a folder that all of them can access.
"""

import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from moray.background import call_repeatedly
from moray.console import progress
from moray.errors import UserError
from moray.workers.collectives import gather
from moray.workers.memory import keep_freed_memory
from moray.workers.preemption import Notice, no_notice
from moray.workers.repeats import end_on_repeated_error

# Files of all workers.
FAULT = "fault.json"
_OUTPUT = "output-"
_COUNTER = "done-"

_POLL_SECONDS = 0.2
_OUTPUT_POLL_SECONDS = 0.5

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Worker:
    """A worker's position among the others.

    Attributes:
        notice: gives the newest notice that nodes are about to be preempted, without waiting.
    """

    rank: int
    world_size: int
    device: torch.device
    notice: Callable[[], Notice | None] = no_notice


# A module-level function, so that it can be pickled by name.
EntryPoint = Callable[[Argument, Worker], Result]


class FirstFault:
    """A `UserError` that ends all workers; of several, the first one recorded."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FAULT

    def record(self, error: UserError) -> None:
        """Record a fault, unless there is one already."""
        temporary = self._file.with_name(f"{self._file.name}.tmp-{uuid.uuid4().hex[:8]}")
        temporary.write_text(json.dumps(error.args))
        try:
            # Atomic, and never replaces an earlier fault.
            with suppress(FileExistsError):
                os.link(temporary, self._file)
        finally:
            temporary.unlink()

    def read(self) -> UserError | None:
        """The fault, if a worker has recorded one."""
        return UserError(*json.loads(self._file.read_text())) if self._file.exists() else None

    def clear(self) -> None:
        """Remove the fault of an earlier attempt."""
        self._file.unlink(missing_ok=True)


def output_name(rank: int) -> str:
    """Name of the file with a worker's output."""
    return f"{_OUTPUT}{rank}.txt"


def _redirect_output(folder: Path, rank: int) -> None:
    """Redirect this process's standard output and error, also of C code, to its rank's file."""
    sys.stdout.flush()
    sys.stderr.flush()
    # On a machine that shares no folder with the driver.
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / output_name(rank)).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


@contextmanager
def follow_output(folder: Path) -> Iterator[None]:
    """While the body runs, copy the workers' output to standard error, each line with its rank."""
    for file in folder.glob(f"{_OUTPUT}*.txt"):
        file.unlink()
    offsets: dict[Path, int] = {}
    try:
        with call_repeatedly(lambda: _copy(folder, offsets), _OUTPUT_POLL_SECONDS):
            yield
    finally:
        _copy(folder, offsets, last=True)


def _copy(folder: Path, offsets: dict[Path, int], last: bool = False) -> None:
    for file in sorted(folder.glob(f"{_OUTPUT}*.txt")):
        with file.open("rb") as stream:
            stream.seek(offsets.get(file, 0))
            lines = stream.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n") and not last:
            # The line isn't complete yet.
            lines.pop()
        offsets[file] = offsets.get(file, 0) + sum(map(len, lines))
        rank = file.stem.removeprefix(_OUTPUT)
        for line in lines:
            print(f"[worker {rank}] {line.decode(errors='replace').rstrip()}", file=sys.stderr)
    sys.stderr.flush()


def counter_name(rank: int) -> str:
    """Name of the file with a worker's count."""
    return f"{_COUNTER}{rank}"


class BatchCounter:
    """Counts the batches that a worker has done."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Count in a file of the folder, one byte per batch."""
        self._file = folder / counter_name(rank)

    def add(self) -> None:
        with self._file.open("ab") as file:
            file.write(b".")


@contextmanager
def show_batches(folder: Path, label: str, total: int | None, start: int = 0) -> Iterator[None]:
    """Show the number of batches that workers have counted while the body runs.

    Args:
        total: None if it is unknown.
        start: how many of the total were done before.
    """
    end = threading.Event()

    def batches() -> Iterator[int]:
        number = start
        while (total is None or number < total) and not end.wait(_POLL_SECONDS):
            count = start + sum(file.stat().st_size for file in folder.glob(f"{_COUNTER}*"))
            while number < (count if total is None else min(count, total)):
                number += 1
                yield number

    def show() -> None:
        for _ in progress(batches(), label, "batch", total, start):
            pass

    follower = threading.Thread(target=show, daemon=True)
    follower.start()
    try:
        yield
    finally:
        end.set()
        follower.join()


def run_entry_point(
    entry_point: EntryPoint[Argument, Result], argument: Argument, worker: Worker, folder: Path
) -> list[Result] | None:
    """Run an entry point in this worker, and gather the results of all workers.

    The entry point runs in its own thread, because a thread that waits in a collective for a failed
    worker can't be stopped. An error that it raises again is a fault. All workers and the driver
    share the folder, for the output and the first fault.

    Returns:
        The results by rank; None if any worker had a fault, which is then in the folder. A fault
        isn't raised, because launchers restart workers that raise.

    Raises:
        Exception: any exception of the entry point in this worker other than a `UserError`.
    """
    _redirect_output(folder, worker.rank)
    keep_freed_memory()
    first_fault = FirstFault(folder)
    results: list[list[Result]] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            if worker.device.type == "cuda":
                # Each thread has a current GPU of its own, at first that of index 0, and FSDP2
                # gathers weights there.
                torch.cuda.set_device(worker.device)
            with end_on_repeated_error(folder, worker.rank):
                results.append(gather(entry_point(argument, worker)))
        except UserError as error:
            first_fault.record(error)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="entry point")
    thread.start()
    while thread.is_alive() and not first_fault.read():
        thread.join(_POLL_SECONDS)
    if first_fault.read():
        # Errors that result from it, such as a lost connection, are less informative.
        return None
    if errors:
        raise errors[0]
    return results[0]
