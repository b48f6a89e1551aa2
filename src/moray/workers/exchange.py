"""The exchange of files between workers and their driver, if they share no folder.

The inputs of a job are brought to each machine, and what its workers write is brought back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from moray.errors import UserError
from moray.storage.objects import open_objects
from moray.storage.transfer import Delivery, deliver, send_files
from moray.workers.entry import (
    FAULT,
    EntryPoint,
    FirstFault,
    Worker,
    counter_name,
    output_name,
)
from moray.workers.repeats import end_on_repeated_error, error_file_name


def no_files(rank: int) -> tuple[str, ...]:
    """Names of no files: for workers that return all of their results."""
    return ()


@dataclass(frozen=True)
class Exchange:
    """How the inputs of a job reach machines, and how files come back.

    Attributes:
        url: where workers put their files, for this start of them alone.
        deliveries: by the folder of an input, what brings it to a machine.
        files: the names of the files that a worker writes, by its rank, besides its output, its
            count and its errors.
        of_an_attempt: names of files that say nothing about the next attempt.
    """

    url: str
    deliveries: Mapping[Path, Delivery]
    files: Callable[[int], tuple[str, ...]] = no_files
    of_an_attempt: tuple[str, ...] = ()

    def here(self, folder: Path) -> Path:
        """The place of an input on this machine; it is downloaded once a machine.

        Raises:
            UserError: if a file in the object store is missing or damaged.
        """
        delivery = self.deliveries.get(folder)
        return delivery.here(folder) if delivery else folder


def deliver_inputs(
    inputs: Mapping[Path, Iterable[Path]], storage_path: str
) -> dict[Path, Delivery]:
    """Upload inputs, each with the folders that it refers to, unless they are there already."""
    return {folder: deliver(list(folders), storage_path) for folder, folders in inputs.items()}


class Job(Protocol):
    """The argument of an entry point."""

    def with_inputs(self, here: Callable[[Path], Path]) -> Self:
        """The same job with other places of its folders."""


@dataclass(frozen=True)
class Remote:
    """An entry point for workers without a shared folder; each has its own `folder` of files."""

    entry_point: EntryPoint[Any, Any]
    exchange: Exchange
    folder: Path

    def __call__(self, job: Job, worker: Worker) -> Any:
        """Run the entry point with its inputs on this machine.

        Raises:
            UserError: that of the entry point; the other workers and the driver get it too.
        """
        with self._send_files(worker.rank):
            return self.entry_point(job.with_inputs(self.exchange.here), worker)

    @contextmanager
    def _send_files(self, rank: int) -> Iterator[None]:
        """During the body and after it, send this worker's files to the driver."""
        exchange = self.exchange
        stale = [error_file_name(rank), *(exchange.of_an_attempt if rank == 0 else ())]
        open_objects(exchange.url).delete(stale)
        files = (output_name(rank), counter_name(rank), error_file_name(rank))
        with send_files(self.folder, exchange.url, [*files, *exchange.files(rank)], FAULT):
            try:
                # Here too, so that the others have the fault.
                with end_on_repeated_error(self.folder, rank):
                    yield
            except UserError as error:
                # Before the files are sent for the last time.
                FirstFault(self.folder).record(error)
                raise
