"""Run an entry point in a worker, until it ends or any worker records a fault."""

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

# A module-level function, so that it can be pickled by name.
EntryPoint = Callable[[Argument, Worker], Result]

_POLL_SECONDS = 0.2


def run_entry_point(
    entry_point: EntryPoint[Argument, Result], argument: Argument, worker: Worker, folder: Path
) -> list[Result] | None:
    """Run an entry point in this worker, and gather the results of all workers.

    The entry point runs in its own thread, because a thread that waits in a collective for a failed
    worker can't be stopped.

    Args:
        entry_point: called with the argument and this worker.
        argument: the same in all workers.
        worker: this worker.
        folder: folder shared by all workers and the driver, for the output and the first fault.

    Returns:
        The results by rank; None if any worker had a fault, which is then in the folder. A fault
        isn't raised, because launchers restart workers that raise.

    Raises:
        Exception: any exception of the entry point in this worker other than a `UserError`.
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
        # Errors that result from it, such as a lost connection, are less informative.
        return None
    if errors:
        raise errors[0]
    return results[0]
