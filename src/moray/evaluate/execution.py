"""How evaluation jobs run on workers: of N workers, each processes every N-th batch.

Batches depend only on the rows, so results don't depend on the number of workers. Models are loaded
one after another, so that only one is in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from moray.errors import UserError, first_line
from moray.model.load import load_model
from moray.workers.memory import is_out_of_memory
from moray.workers.progress import BatchCounter
from moray.workers.worker import Worker

Batch = TypeVar("Batch")
Result = TypeVar("Result")

Load = Callable[[Path, torch.dtype, torch.device], PreTrainedModel]
"""Loads a model from a folder, with weights of a type, to a device."""


@dataclass(frozen=True)
class Execution:
    """Settings common to all jobs.

    Attributes:
        folder: folder shared by the workers, which count their progress there.
        batch_size: rows or prompts in a forward pass.
        batch_size_key: config key of the batch size, for errors.
        precision: `fp32`, `bf16`, or `auto`: bf16 on GPUs that support it.
        threads: CPU threads per worker; None for all cores.
    """

    folder: Path
    batch_size: int
    batch_size_key: str
    precision: str
    threads: int | None


@dataclass(frozen=True)
class EvaluationJob:
    """What jobs have in common.

    Attributes:
        models: the models' folders, by name; absolute, because the current directory of a Ray
            worker is another one.
        stores: stores of rows, absolute.
        execution: how to run the job.
    """

    models: dict[str, Path]
    stores: tuple[Path, ...]
    execution: Execution


def num_batches(models: dict[str, Path], items: int, batch_size: int) -> int:
    """Number of batches that all workers process together."""
    return len(models) * -(-items // batch_size)


def of_each_model(
    function: Callable[[PreTrainedModel], Result],
    models: dict[str, Path],
    execution: Execution,
    worker: Worker,
    load: Load = load_model,
) -> dict[str, Result]:
    """Call a function on each model, one in memory at a time.

    Args:
        function: called on each model.
        models: the models' folders, by name.
        execution: how to run the job.
        worker: this worker.
        load: loads a model.

    Returns:
        Its results, by the models' names.

    Raises:
        UserError: if memory is too small even for a single row.
    """
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    dtype = _dtype(execution.precision, worker.device)
    try:
        return {
            name: function(load(folder, dtype, worker.device)) for name, folder in models.items()
        }
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            execution.batch_size_key,
            f"the memory of worker {worker.rank} ({worker.device.type}) is too small for the model "
            f"and a single row ({first_line(error)})",
            "use fewer workers, or a machine or GPU with more memory",
        ) from error


def own_batches(batches: Sequence[Batch], execution: Execution, worker: Worker) -> Iterator[Batch]:
    """Yield this worker's batches, and count each one when it is done."""
    counter = BatchCounter(execution.folder, worker.rank)
    for batch in batches[worker.rank :: worker.world_size]:
        yield batch
        counter.add()


def _dtype(precision: str, device: torch.device) -> torch.dtype:
    if precision == "auto":
        supported = device.type == "cuda" and torch.cuda.is_bf16_supported(False)
        precision = "bf16" if supported else "fp32"
    return torch.bfloat16 if precision == "bf16" else torch.float32
