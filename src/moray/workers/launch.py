"""Where and how workers are started, whoever starts them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moray import machine
from moray.config.layout import Layout, check_gpus, lay_out_here
from moray.config.schema import Ray
from moray.console import say
from moray.workers.gpus import reserved_gpus


class WorkersFailedError(Exception):
    """Workers failed more often than the config allows; the text is of the last failure."""


@dataclass(frozen=True)
class Launch:
    """Where and how workers are started.

    Attributes:
        ray: the `ray` section of the config.
        path: of that section, for errors.
        folder: shared by all workers; their first fault and their output go there.
        launcher: who starts them.
        timeout: seconds after which a collective fails.
        batch_size: rows that the workers must divide evenly; None if any number will do.
        streams: whether Ray Data feeds the workers, whose tasks need a CPU beside them.
        in_process: whether a single worker on this machine runs in this process.
    """

    ray: Ray
    path: str
    folder: Path
    launcher: Literal["ray", "torchrun"]
    timeout: float
    batch_size: int | None = None
    streams: bool = False
    in_process: bool = False


@contextmanager
def on_this_machine(launch: Launch) -> Iterator[Layout]:
    """The layout of workers on this machine, whose GPUs are held for the body.

    Raises:
        UserError: if the workers need more than there is.
    """
    layout = lay_out_here(launch.ray, launch.batch_size)
    check_gpus(layout, len(machine.gpus()), launch.path)
    if layout.note:
        say(f"{launch.path}: {layout.note}")
    with reserved_gpus(layout.num_gpus):
        yield layout
