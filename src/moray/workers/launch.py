"""How and where to start workers, for all launchers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moray import machine
from moray.config.layout import Layout, check_gpus, lay_out_here
from moray.config.schema.sections import Ray
from moray.console import say
from moray.workers.gpus import reserved_gpus


class WorkersFailedError(Exception):
    """Workers failed more often than the config allows; the message is the last failure."""


@dataclass(frozen=True)
class Launch:
    """How and where to start workers.

    Attributes:
        ray: the `ray` section of the config.
        path: config path of that section, for errors.
        folder: folder for the output of workers and their first fault.
        launcher: what starts the workers.
        timeout: seconds after which a collective fails.
        batch_size: rows that the number of workers must divide; None for no such limit.
        streams: whether the workers read from Ray Data, whose tasks need another CPU.
        in_process: whether to run a single worker on this machine in this process.
        libraries: names of libraries that the entry point needs besides those of all stages.
        shared_folder: whether all workers must see the files of each other in the folder.
    """

    ray: Ray
    path: str
    folder: Path
    launcher: Literal["ray", "torchrun"]
    timeout: float
    batch_size: int | None = None
    streams: bool = False
    in_process: bool = False
    libraries: tuple[str, ...] = ()
    shared_folder: bool = True


@contextmanager
def on_this_machine(launch: Launch) -> Iterator[Layout]:
    """Lay out workers on this machine, and reserve their GPUs for the body.

    Raises:
        UserError: if the workers need more than this machine has.
    """
    layout = lay_out_here(launch.ray, launch.batch_size)
    check_gpus(layout, len(machine.gpus()), launch.path)
    if layout.note:
        say(f"{launch.path}: {layout.note}")
    with reserved_gpus(layout.num_gpus):
        yield layout
