"""Files of a run under way, between the driver and workers on machines without its work folder.

Output, history, faults and stacks are written to the work folder, which the driver and the workers
on its machine share. Those on other machines copy theirs below the run's URL, from where the driver
takes them.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from moray.background import repeated
from moray.errors import UserError
from moray.storage.interface import Remote
from moray.train.history import HISTORY
from moray.workers.faults import FirstFault
from moray.workers.worker import Worker

_SECONDS = 2.0
_FOLDER = "live"
_MARKER = "driver"
_FAULT, _MEANING = "fault.json", "failure.json"

State = tuple[float, int]


@contextmanager
def received(work: Path, remote: Remote | None) -> Iterator[None]:
    """During the body and after it, take what workers on other machines have sent."""
    if remote is None:
        yield
        return
    from moray.storage.objects import Objects

    (work / _MARKER).touch()
    # What drivers that were killed have left; this one has the run's lock.
    left = Objects(f"{remote.url}/{_FOLDER}")
    left.delete(left.listed(""))
    objects = Objects(_url(work, remote))
    taken: dict[str, State] = {}

    def take() -> None:
        there = objects.listed("")
        for name, listed in there.items():
            state = listed.changed, listed.size
            if taken.get(name) != state:
                temporary = work / f"{name}.part"
                if objects.download(name, temporary):
                    temporary.replace(work / name)
                    taken[name] = state
        for name in taken.keys() - there.keys():
            (work / name).unlink(missing_ok=True)
            del taken[name]

    try:
        with _attempted(take):
            yield
    finally:
        take()
        objects.delete(objects.listed(""))


@contextmanager
def sent(work: Path, remote: Remote | None, worker: Worker) -> Iterator[None]:
    """During the body, send this worker's files, if the driver is on another machine.

    Raises:
        UserError: what the body raised; the other workers and the driver have it then.
    """
    if remote is None or (work / _MARKER).exists():
        yield
        return
    from moray.storage.objects import Objects

    objects = Objects(_url(work, remote))
    names = [f"output-{worker.rank}.txt", f"stalled-{worker.rank}.txt", _MEANING]
    names += [HISTORY] if worker.rank == 0 else []
    done: dict[str, State] = {}

    def send() -> None:
        for name in names:
            file = work / name
            if not file.exists():
                continue
            facts = file.stat()
            if done.get(name) != (facts.st_mtime, facts.st_size):
                objects.put(name, file.read_bytes())
                done[name] = facts.st_mtime, facts.st_size
        fault = work / _FAULT
        if fault.exists():
            objects.create(_FAULT, fault.read_bytes())
        else:
            objects.download(_FAULT, fault)

    if worker.rank == 0:
        # Of an earlier attempt.
        objects.delete([_MEANING])
    try:
        with _attempted(send):
            yield
    except UserError as error:
        FirstFault(work).record(error)
        raise
    finally:
        send()


def _attempted(function: Callable[[], None]) -> AbstractContextManager[None]:
    # Takes a while to import.
    from botocore.exceptions import BotoCoreError, ClientError

    def attempt() -> None:
        try:
            function()
        except (ClientError, BotoCoreError) as error:
            # The object store may be back the next time.
            print(f"can't exchange files with the object store: {error}", file=sys.stderr)

    return repeated(attempt, _SECONDS)


def _url(work: Path, remote: Remote) -> str:
    # The folder's name is of this start of the driver alone.
    return f"{remote.url}/{_FOLDER}/{work.name}"
