"""Evaluation on machines without the models and rows, which an object store delivers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from moray.errors import UserError
from moray.evaluate.execution import EvaluationJob
from moray.model.folder import whole_model_and_adapters
from moray.storage.exchange import sent
from moray.storage.interface import Delivery
from moray.storage.opened import deliver
from moray.workers.faults import FAULT, FirstFault
from moray.workers.output import output_name
from moray.workers.progress import counter_name
from moray.workers.worker import Worker


@dataclass(frozen=True)
class DeliveredJob:
    """A job with what brings its inputs to a machine.

    Attributes:
        entry_point: what workers do with the job.
        job: the job.
        models: deliveries of its models, in their order.
        stores: deliveries of its stores, in their order.
        url: where workers put output, counts and the first fault.
    """

    entry_point: Callable[[Any, Worker], Any]
    job: EvaluationJob
    models: tuple[Delivery, ...]
    stores: tuple[Delivery, ...]
    url: str


def delivered(
    entry_point: Callable[[Any, Worker], Any], job: EvaluationJob, storage_path: str, url: str
) -> DeliveredJob:
    """Upload the inputs of a job, unless they are in the object store already.

    Args:
        entry_point: what workers do with the job.
        job: the job.
        storage_path: the key `ray.storage_path`, a URL.
        url: where workers put output, counts and the first fault.
    """
    models = []
    for folder in job.models.values():
        whole, adapters = whole_model_and_adapters(folder)
        models.append(deliver([whole, *adapters], storage_path))
    stores = tuple(deliver([store], storage_path) for store in job.stores)
    return DeliveredJob(entry_point, job, tuple(models), stores, url)


def run_delivered(delivered: DeliveredJob, worker: Worker) -> Any:
    """Run a job with its inputs on this machine.

    Raises:
        UserError: what the job raised, or that an input is missing or damaged.
    """
    folder = delivered.job.execution.folder
    names = [output_name(worker.rank), counter_name(worker.rank)]
    with sent(folder, delivered.url, names, FAULT):
        try:
            return delivered.entry_point(_with_inputs_here(delivered), worker)
        except UserError as error:
            # Before the files are sent for the last time.
            FirstFault(folder).record(error)
            raise


def _with_inputs_here(delivered: DeliveredJob) -> EvaluationJob:
    job = delivered.job
    models = zip(job.models.items(), delivered.models, strict=True)
    stores = zip(job.stores, delivered.stores, strict=True)
    return replace(
        job,
        models={name: at.here() / path.relative_to("/") for (name, path), at in models},
        stores=tuple(at.here() / path.relative_to("/") for path, at in stores),
    )
