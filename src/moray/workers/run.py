"""Running an entry point on N workers: each one's result, or the first fault of any."""

from typing import TypeVar

from moray.workers import ray_train, torchrun
from moray.workers.entry import EntryPoint
from moray.workers.faults import FirstFault
from moray.workers.launch import Launch, WorkersFailedError
from moray.workers.output import followed_output

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def run_on_workers(
    entry_point: EntryPoint[Argument, Result], argument: Argument, launch: Launch
) -> list[Result]:
    """Run an entry point on as many workers as the config says.

    Returns:
        What it returned, by rank.

    Raises:
        UserError: the first that any worker raised, or if the workers need more than there is.
        WorkersFailedError: if workers were lost or failed more often than the config allows.
    """
    first_fault = FirstFault(launch.folder)
    first_fault.clear()
    with followed_output(launch.folder):
        launcher = torchrun if launch.launcher == "torchrun" else ray_train
        results: list[Result] | None = launcher.run(entry_point, argument, launch)
    if fault := first_fault.found():
        raise fault
    if results is None:
        raise WorkersFailedError("a worker ended without a result")
    return results
