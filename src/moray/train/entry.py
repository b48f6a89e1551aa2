"""Run a training job on workers, which may be on machines without the run's work folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moray.config.schema.sections import Ray
from moray.config.schema.train import STRATEGIES
from moray.errors import UserError
from moray.storage.interface import Remote
from moray.storage.objects import open_objects
from moray.storage.opened import needed_libraries
from moray.storage.transfer import received, sent
from moray.train.failures import MEANING, collective_timeout, stacks_name
from moray.train.history import HISTORY
from moray.train.job import Job, with_inputs_here
from moray.train.performance import uncollected
from moray.workers.entry import FAULT, FirstFault, Worker, output_name
from moray.workers.launch import Launch, WorkersFailedError
from moray.workers.repeats import raised_name, raised_once
from moray.workers.run import run_on_workers

# What workers have sent, below the run's URL.
_FOLDER = "live"


def run_job(job: Job, ray: Ray, run: str) -> dict[str, Any]:
    """Run a training job on the workers that the config asks for.

    Returns:
        What the loop returned.

    Raises:
        UserError: the first that any worker raised, or if there are too few resources.
        WorkersFailedError: if workers were lost or failed more often than the config allows.
    """
    launch = Launch(
        ray=ray,
        path=f"runs.{run}.ray",
        folder=job.work,
        launcher=job.settings.launcher,
        timeout=collective_timeout(job.settings),
        batch_size=job.settings.global_batch_size,
        streams=job.parts[0].rows_url is not None,
        libraries=(*_libraries(job), *needed_libraries(ray.storage_path)),
        shared_folder=job.remote is None,
    )
    try:
        with _received(job.work, job.remote):
            # All workers return the same.
            return run_on_workers(train_on_worker, job, launch)[0]
    except WorkersFailedError as error:
        if fault := FirstFault(job.work).found():
            raise fault from error
        raise


def _libraries(job: Job) -> Iterator[str]:
    if library := STRATEGIES[job.settings.strategy].library:
        yield library
    if job.adapter:
        yield "peft"
    in_4bit = job.adapter and job.adapter.quantize_base == "4bit"
    if in_4bit or job.settings.optimizer == "adamw_8bit":
        yield "bitsandbytes"


def train_on_worker(job: Job, worker: Worker) -> dict[str, Any]:
    """The training loop. Imported only in workers, because its libraries take seconds to load."""
    # Garbage collections during these imports would take half a second.
    with uncollected():
        from moray.train.loop import train
    with _sent(job.work, job.remote, worker):
        return train(with_inputs_here(job), worker)


@contextmanager
def _received(work: Path, remote: Remote | None) -> Iterator[None]:
    """During the body and after it, take what workers on other machines have sent."""
    if remote is None:
        yield
        return
    # What drivers that were killed have left; this one has the run's lock.
    left = open_objects(f"{remote.url}/{_FOLDER}")
    left.delete(left.listed(""))
    with received(work, _url(work, remote)):
        yield


@contextmanager
def _sent(work: Path, remote: Remote | None, worker: Worker) -> Iterator[None]:
    """During the body, send this worker's files, if the driver is on another machine.

    Raises:
        UserError: what the body raised; the other workers and the driver have it then.
    """
    if remote is None:
        yield
        return
    # Of an earlier attempt.
    left = [raised_name(worker.rank)]
    names = [output_name(worker.rank), stacks_name(worker.rank), MEANING, *left]
    if worker.rank == 0:
        names.append(HISTORY)
        left.append(MEANING)
    open_objects(_url(work, remote)).delete(left)
    with sent(work, _url(work, remote), names, FAULT):
        try:
            # Here too, so that the others have the fault.
            with raised_once(work, worker.rank):
                yield
        except UserError as error:
            FirstFault(work).record(error)
            raise


def _url(work: Path, remote: Remote) -> str:
    # The folder's name is of this start of the driver alone.
    return f"{remote.url}/{_FOLDER}/{work.name}"
