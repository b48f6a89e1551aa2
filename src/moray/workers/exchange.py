"""What workers and their driver exchange through an object store, if they share no folder.

The inputs of a job are brought to each machine, and what its workers write is brought back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from moray.errors import UserError
from moray.storage.objects import open_objects
from moray.storage.transfer import Delivery, deliver, received, sent
from moray.workers.entry import (
    FAULT,
    EntryPoint,
    FirstFault,
    Worker,
    counter_name,
    output_name,
)
from moray.workers.repeats import raised_name, raised_once


class Movable(Protocol):
    """A job that says where its inputs are."""

    def with_inputs(self, here: Callable[[Path], Path]) -> Self:
        """The job with other places of its folders."""


def no_files(rank: int) -> tuple[str, ...]:
    """The files of workers whose results are all that is wanted of them."""
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

    @contextmanager
    def received(self, folder: Path) -> Iterator[None]:
        """During the body and after it, take what workers on other machines have put there."""
        with received(folder, self.url):
            yield

    def here(self, folder: Path) -> Path:
        """Where an input is on this machine; it is downloaded, once a machine.

        Raises:
            UserError: if a file in the object store is missing or damaged.
        """
        delivery = self.deliveries.get(folder)
        return delivery.here(folder) if delivery else folder

    @contextmanager
    def sent(self, folder: Path, rank: int) -> Iterator[None]:
        """During the body and after it, put a worker's files where the driver takes them.

        Raises:
            UserError: what the body raised; the other workers and the driver have it then.
        """
        left = [raised_name(rank), *(self.of_an_attempt if rank == 0 else ())]
        open_objects(self.url).delete(left)
        names = [output_name(rank), counter_name(rank), raised_name(rank), *self.files(rank)]
        with sent(folder, self.url, names, FAULT):
            try:
                # Here too, so that the others have the fault.
                with raised_once(folder, rank):
                    yield
            except UserError as error:
                # Before the files are sent for the last time.
                FirstFault(folder).record(error)
                raise


@dataclass(frozen=True)
class Remote:
    """An entry point on machines that don't have its inputs and the driver's folder."""

    entry_point: EntryPoint[Any, Any]
    exchange: Exchange
    folder: Path

    def __call__(self, job: Movable, worker: Worker) -> Any:
        """Run it with its inputs on this machine."""
        with self.exchange.sent(self.folder, worker.rank):
            return self.entry_point(job.with_inputs(self.exchange.here), worker)


def delivered(inputs: Mapping[Path, Iterable[Path]], storage_path: str) -> dict[Path, Delivery]:
    """Upload inputs, each with the folders that it refers to, unless they are there already."""
    return {folder: deliver(list(folders), storage_path) for folder, folders in inputs.items()}
