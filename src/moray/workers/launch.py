"""How and where to start workers; what they need is held against what this machine has."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from moray import machine
from moray.config.layout import Layout, check_gpus, lay_out_here
from moray.config.schema.sections import Ray
from moray.console import say
from moray.errors import UserError
from moray.workers.cards import identities

if TYPE_CHECKING:
    # The module imports PyTorch, which checks of a config do without.
    from moray.workers.exchange import Exchange

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_POLL_SECONDS = 1.0


class WorkersFailedError(Exception):
    """Workers failed more often than the config allows; the message is the last failure."""


@dataclass(frozen=True)
class Launch:
    """How and where to start workers.

    Attributes:
        path: config path of that section, for errors.
        folder: folder for the output of workers and their first fault.
        timeout: seconds after which a collective fails.
        batch_size: rows that the number of workers must divide; None for no such limit.
        streams: whether the workers read rows by Ray tasks, which need another CPU.
        in_process: whether to run a single worker on this machine in this process.
        libraries: names of libraries that the entry point needs besides those of all stages.
        exchange: for workers that don't all see the files of each other in the folder.
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
    exchange: Exchange | None = None


@contextmanager
def reserve_workers(launch: Launch) -> Iterator[Layout]:
    """Lay out workers on this machine, and reserve their GPUs for the body.

    Raises:
        UserError: if the workers need more than this machine has.
    """
    layout = lay_out_here(launch.ray, launch.batch_size)
    check_gpus(layout, len(machine.gpus()), launch.path)
    if layout.note:
        say(f"{launch.path}: {layout.note}")
    with reserve_gpus(layout.num_gpus):
        yield layout


def check_cores(settings: Ray, path: str, batch_size: int | None = None) -> None:
    """Check that this machine has the CPUs that local workers need.

    Raises:
        UserError: if it hasn't.
    """
    if settings.address == "local":
        layout = lay_out_here(settings, batch_size)
        resources = {"CPU": settings.shares.get("CPU", 0)}
        check_total(resources, layout.num_workers, {"CPU": machine.cores()}, path)


def worker_resources(settings: Ray, layout: Layout) -> dict[str, float]:
    """The resources that Ray reserves for each worker, by name."""
    shares = {"GPU": 1.0} | settings.shares
    return {name: share for name, share in shares.items() if name != "GPU" or layout.use_gpu}


def check_total(
    resources: Mapping[str, float], workers: int, there: Mapping[str, float], path: str
) -> None:
    """Check that this machine has enough of each resource for all workers.

    Raises:
        UserError: if there isn't.
    """
    for resource, share in resources.items():
        available = there.get(resource, 0)
        if workers * share > available:
            raise UserError(
                f"{path}.num_workers",
                f"{workers} workers with {share:g} {resource} each need {workers * share:g} "
                f"{resource}, but this machine has {available:g}",
                f"lower num_workers or resources_per_worker.{resource}",
            )


def check_room_for_reading(
    launch: Launch, layout: Layout, there: Mapping[str, float], where: str
) -> None:
    """Check that workers that stream leave a CPU for the tasks that read their rows.

    Raises:
        UserError: if they take all.
    """
    share, available = worker_resources(launch.ray, layout).get("CPU", 0), there.get("CPU", 0)
    workers = layout.num_workers
    if launch.streams and workers * share + 1 > available >= workers * share:
        raise UserError(
            f"{launch.path}.num_workers",
            f"{workers} workers with {share:g} CPU each use all {available:g} CPU "
            f"that {where} has, and data.loader: stream needs one more",
            "lower num_workers or resources_per_worker.CPU",
        )


@contextmanager
def reserve_gpus(count: int, folder: Path | None = None) -> Iterator[list[str]]:
    """Reserve GPUs for the body; this process and its children see no others.

    Waits until enough GPUs are free. Snakemake counts the GPUs of its jobs but doesn't assign them,
    and two workflows don't know about each other. So a run holds a file lock for each of its GPUs,
    named by the GPU's UUID.

    Args:
        count: number of GPUs; 0 hides all of them.
        folder: folder of the locks; by default, one that all runs of this user on this machine
            share.
    """
    folder = folder or Path(tempfile.gettempdir(), f"moray-gpus-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    before = os.environ.get(_VISIBLE)
    with ExitStack() as locks:
        names = _hold(_gpus_by_lock(folder) if count else {}, count, locks)
        os.environ[_VISIBLE] = ",".join(names)
        try:
            yield names
        finally:
            if before is None:
                del os.environ[_VISIBLE]
            else:
                os.environ[_VISIBLE] = before


def _gpus_by_lock(folder: Path) -> dict[Path, str]:
    """The names of the GPUs that this process may use, by the files of their locks."""
    names = machine.gpus()
    cards = (card.replace("/", "-") for card in identities(names))
    return {folder / card: name for card, name in zip(cards, names, strict=False)}


def _hold(gpus: Mapping[Path, str], count: int, locks: ExitStack) -> list[str]:
    waiting = False
    while True:
        names: list[str] = []
        with ExitStack() as mine:
            for file, name in gpus.items():
                if len(names) < count and (lock := _lock(file)):
                    mine.enter_context(lock)
                    names.append(name)
            # All or none: two runs that each hold a GPU the other needs would wait forever.
            if len(names) == count:
                locks.push(mine.pop_all())
                return names
        if not waiting:
            say("waiting for a free GPU" if count == 1 else f"waiting for {count} free GPUs")
            waiting = True
        time.sleep(_POLL_SECONDS)


def _lock(file: Path) -> IO[str] | None:
    """Hold a lock until the file is closed; None if another process has it."""
    stream = file.open("a")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return stream
