"""Output, history, faults and stacks of workers on machines without the run's work folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.errors import UserError
from moray.storage import exchange
from moray.storage.buckets import open_objects
from moray.storage.interface import Remote
from moray.train.history import HISTORY
from moray.train.supervision.failures import MEANING
from moray.train.supervision.stall import stacks_name
from moray.workers.faults import FAULT, FirstFault
from moray.workers.output import output_name
from moray.workers.worker import Worker

_FOLDER = "live"


@contextmanager
def received(work: Path, remote: Remote | None) -> Iterator[None]:
    """During the body and after it, take what workers on other machines have sent."""
    if remote is None:
        yield
        return
    # What drivers that were killed have left; this one has the run's lock.
    left = open_objects(f"{remote.url}/{_FOLDER}")
    left.delete(left.listed(""))
    with exchange.received(work, _url(work, remote)):
        yield


@contextmanager
def sent(work: Path, remote: Remote | None, worker: Worker) -> Iterator[None]:
    """During the body, send this worker's files, if the driver is on another machine.

    Raises:
        UserError: what the body raised; the other workers and the driver have it then.
    """
    if remote is None:
        yield
        return
    names = [output_name(worker.rank), stacks_name(worker.rank), MEANING]
    if worker.rank == 0:
        names.append(HISTORY)
        # Of an earlier attempt.
        _forget(work, remote)
    with exchange.sent(work, _url(work, remote), names, FAULT):
        try:
            yield
        except UserError as error:
            FirstFault(work).record(error)
            raise


def _forget(work: Path, remote: Remote) -> None:
    open_objects(_url(work, remote)).delete([MEANING])


def _url(work: Path, remote: Remote) -> str:
    # The folder's name is of this start of the driver alone.
    return f"{remote.url}/{_FOLDER}/{work.name}"
