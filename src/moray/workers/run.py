"""Run an entry point on N workers: returns all results, or raises the first fault."""

from contextlib import nullcontext

import torch

from moray.config.layout import lay_out_here
from moray.storage.transfer import receive_files
from moray.workers import ray_train, torchrun
from moray.workers.entry import Argument, EntryPoint, FirstFault, Result, Worker, follow_output
from moray.workers.exchange import Remote
from moray.workers.launch import Launch, WorkersFailedError, reserve_workers
from moray.workers.repeats import forget_errors


def run_on_workers(
    entry_point: EntryPoint[Argument, Result], argument: Argument, launch: Launch
) -> list[Result]:
    """Run an entry point on the number of workers in the config; returns the results by rank.

    Raises:
        UserError: the first that any worker raised, or if there are too few resources.
        WorkersFailedError: if workers were lost or failed more often than the config allows.
    """
    if launch.in_process and _is_alone(launch):
        with reserve_workers(launch) as layout:
            device = torch.device("cuda" if layout.use_gpu else "cpu")
            return [entry_point(argument, Worker(0, 1, device))]
    first_fault = FirstFault(launch.folder)
    first_fault.clear()
    forget_errors(launch.folder)
    launcher = torchrun if launch.launcher == "torchrun" else ray_train
    exchange = launch.exchange
    run = Remote(entry_point, exchange, launch.folder) if exchange else entry_point
    try:
        with (
            follow_output(launch.folder),
            receive_files(launch.folder, exchange.url) if exchange else nullcontext(),
        ):
            results: list[Result] | None = launcher.run(run, argument, launch)
    except WorkersFailedError as error:
        # A worker may have sent the cause last of all.
        if fault := first_fault.read():
            raise fault from error
        raise
    if fault := first_fault.read():
        raise fault
    if results is None:
        raise WorkersFailedError("a worker ended without a result")
    return results


def _is_alone(launch: Launch) -> bool:
    if launch.ray.address != "local":
        return False
    return lay_out_here(launch.ray, launch.batch_size).num_workers == 1
