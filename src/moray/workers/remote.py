"""Run an entry point on a machine that has neither its inputs nor the driver's folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from moray.errors import UserError
from moray.storage.objects import open_objects
from moray.storage.transfer import sent
from moray.workers.entry import (
    FAULT,
    EntryPoint,
    FirstFault,
    Worker,
    counter_name,
    output_name,
)
from moray.workers.exchange import Exchange
from moray.workers.repeats import end_on_repeated_error, raised_name


class Job(Protocol):
    """What an entry point is called with."""

    def with_inputs(self, here: Callable[[Path], Path]) -> Self:
        """The same with other places of its folders."""


@dataclass(frozen=True)
class Remote:
    """An entry point for such machines; `folder` is that of the workers' files, on each."""

    entry_point: EntryPoint[Any, Any]
    exchange: Exchange
    folder: Path

    def __call__(self, job: Job, worker: Worker) -> Any:
        """Run it with its inputs on this machine.

        Raises:
            UserError: what it raised; the other workers and the driver have it then.
        """
        with self._sent(worker.rank):
            return self.entry_point(job.with_inputs(self.exchange.here), worker)

    @contextmanager
    def _sent(self, rank: int) -> Iterator[None]:
        """During the body and after it, put this worker's files where the driver takes them."""
        exchange = self.exchange
        left = [raised_name(rank), *(exchange.of_an_attempt if rank == 0 else ())]
        open_objects(exchange.url).delete(left)
        names = [output_name(rank), counter_name(rank), raised_name(rank), *exchange.files(rank)]
        with sent(self.folder, exchange.url, names, FAULT):
            try:
                # Here too, so that the others have the fault.
                with end_on_repeated_error(self.folder, rank):
                    yield
            except UserError as error:
                # Before the files are sent for the last time.
                FirstFault(self.folder).record(error)
                raise
