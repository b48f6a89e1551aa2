"""Run a training job on workers."""

from collections.abc import Iterator
from typing import Any

from moray.config.schema import Ray
from moray.config.strategies import STRATEGIES
from moray.storage.opened import needed_libraries
from moray.train.engine.memory import uncollected
from moray.train.job import Job, with_inputs_here
from moray.train.supervision.exchange import received, sent
from moray.train.supervision.stall import collective_timeout
from moray.workers.faults import FirstFault
from moray.workers.launch import Launch, WorkersFailedError
from moray.workers.run import run_on_workers
from moray.workers.worker import Worker


def run_job(job: Job, ray: Ray, run: str) -> dict[str, Any]:
    """Run a training job on the workers that the config asks for.

    Args:
        job: the job.
        ray: the `ray` section of the run.
        run: name of the run.

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
        with received(job.work, job.remote):
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
        if job.adapter.quantize_base:
            yield "bitsandbytes"


def train_on_worker(job: Job, worker: Worker) -> dict[str, Any]:
    """The training loop. Imported only in workers, because its libraries take seconds to load."""
    # Garbage collections during these imports would take half a second.
    with uncollected():
        from moray.train.loop import train
    with sent(job.work, job.remote, worker):
        return train(with_inputs_here(job), worker)
