"""The rows of a micro-batch under `micro_batch_size: auto`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from moray.config import extras
from moray.config.schema.train import MICRO_BATCH_SIZE
from moray.train.memory import rows_of_micro_batch
from moray.train.spec import RunSpec
from moray.workers.collectives import from_first_worker
from moray.workers.entry import Worker
from moray.workers.memory import is_out_of_memory

# Has the rows with which memory ran out, so that a resumed run computes as before.
_TOO_MANY = "too-many-rows"


def with_micro_batch_size(spec: RunSpec, worker: Worker) -> RunSpec:
    """The spec with a number for `micro_batch_size: auto`, the same on all workers."""
    if spec.settings.micro_batch_size != "auto":
        return spec
    rows = from_first_worker(lambda: _rows(spec, worker))
    return replace(spec, settings=spec.settings.model_copy(update={"micro_batch_size": rows}))


def _rows(spec: RunSpec, worker: Worker) -> int:
    rows, plan = MICRO_BATCH_SIZE, extras.COMMANDS["plan"]
    if worker.device.type == "cuda" and extras.is_there(plan):
        capacity = torch.cuda.get_device_properties(worker.device).total_memory
        rows = extras.part(plan, "fit").rows_that_fit(spec, worker.world_size, capacity)
    too_many = spec.work / _TOO_MANY
    return min(rows, int(too_many.read_text()) // 2) if too_many.exists() else rows


@contextmanager
def halve_on_out_of_memory(spec: RunSpec, worker: Worker) -> Iterator[None]:
    """If memory runs out in the body, the next start takes half the rows; but only once."""
    try:
        yield
    except Exception as error:
        rows = rows_of_micro_batch(spec.settings, worker.world_size)
        too_many = spec.work / _TOO_MANY
        if is_out_of_memory(error) and rows > 1 and not too_many.exists():
            too_many.write_text(str(rows))
        raise
