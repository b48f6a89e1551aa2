"""What runs in each worker: an entry point, ended by the first fault of any worker."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from moray.errors import UserError
from moray.workers.collectives import gathered
from moray.workers.faults import FirstFault
from moray.workers.output import redirect_output
from moray.workers.worker import Worker

Argument = TypeVar("Argument")
Result = TypeVar("Result")

# A function of a module, so that it can be named in another process.
EntryPoint = Callable[[Argument, Worker], Result]

_POLL_SECONDS = 0.2


def run_entry_point(
    entry_point: EntryPoint[Argument, Result], argument: Argument, worker: Worker, folder: Path
) -> list[Result] | None:
    """Run an entry point in this worker, and collect what it returned in all of them.

    It runs in a thread of its own, because a thread that waits in a collective for a worker that
    has failed can't be ended.

    Args:
        entry_point: called with the argument and this worker.
        argument: the same in all workers.
        worker: this one.
        folder: shared by all workers and the driver: the first fault and the output go there.

    Returns:
        The results by rank; None if any worker had a fault, which is in the folder then. A fault
        is not raised, because launchers start workers again that raise.

    Raises:
        Exception: what the entry point raised in this worker, other than a `UserError`.
    """
    redirect_output(folder, worker.rank)
    first_fault = FirstFault(folder)
    results: list[list[Result]] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(gathered(entry_point(argument, worker)))
        except UserError as error:
            first_fault.record(error)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="entry point")
    thread.start()
    while thread.is_alive() and not first_fault.found():
        thread.join(_POLL_SECONDS)
    if first_fault.found():
        # Errors that follow from it, such as a lost connection, say less.
        return None
    if errors:
        raise errors[0]
    return results[0]
