"""How evaluation jobs run on workers: of N workers, each processes every N-th batch.

Batches depend only on the rows, so results don't depend on the number of workers. Models are loaded
one after another, so that only one is in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from moray import machine
from moray.errors import UserError, first_line
from moray.model.load import load_model
from moray.proofs.comparison import Comparison
from moray.workers.entry import BatchCounter, EntryPoint, Worker
from moray.workers.memory import is_out_of_memory

Items = TypeVar("Items", NDArray[np.int64], range)
Result = TypeVar("Result")

Load = Callable[[Path, torch.dtype, torch.device], PreTrainedModel]
"""Loads a model from a folder, with weights of a type, to a device."""


@dataclass(frozen=True)
class EvaluationJob:
    """The models and rows to evaluate, and how; the same for all workers.

    Attributes:
        folder: folder shared by the workers, which count their progress there.
        batch_size: rows or prompts in a forward pass.
        batch_size_key: config key of the batch size, for errors.
        precision: `fp32`, `bf16`, or `auto`: bf16 on GPUs that support it.
        threads: CPU threads per worker; None for all cores.
        models: the models' folders, by name; absolute, because the current directory of a Ray
            worker is another one.
        stores: stores of rows, absolute.
    """

    folder: Path
    batch_size: int
    batch_size_key: str
    precision: str
    threads: int | None
    models: dict[str, Path] = field(default_factory=dict)
    stores: tuple[Path, ...] = ()

    def with_inputs(self, here: Callable[[Path], Path]) -> Self:
        """The job with other places of its models and its stores."""
        models = {name: here(folder) for name, folder in self.models.items()}
        return replace(self, models=models, stores=tuple(map(here, self.stores)))


@dataclass(frozen=True)
class Evaluation:
    """A task's comparison of `base` and `tuned` on the test splits of stores.

    It is what `evaluation` of the task's module of this name returns, which gets the models'
    folders and the run's stores in the order of its datasets, all absolute, and `cfg` of
    `stages.evaluate`.

    Attributes:
        figures: those of the result that are printed.
        rows: number of rows to score in each store.
        entry_point: runs on each worker and scores its share of the rows with each model.
        scores: computes the content of `eval.json` from the entry point's results, by rank: for
            `base`, `tuned` and `difference`, each figure with its interval; and what they were
            computed from.
        proof: compares a few of these results, and how many seconds they took, with what plain
            transformers computes.
    """

    figures: Sequence[str]
    rows: Sequence[int]
    entry_point: EntryPoint[Any, Any]
    scores: Callable[[list[Any]], dict[str, Any]]
    proof: Callable[[list[Any], float], Iterable[Comparison]]


def batches_of(items: Items, batch_size: int) -> list[Items]:
    """Cut rows or prompts into batches; independent of the number of workers."""
    return [items[start : start + batch_size] for start in range(0, len(items), batch_size)]


def own_batches(items: Items, job: EvaluationJob, worker: Worker) -> Iterator[Items]:
    """Yield this worker's batches, and count each one when the next is taken."""
    counter = BatchCounter(job.folder, worker.rank)
    for batch in batches_of(items, job.batch_size)[worker.rank :: worker.world_size]:
        yield batch
        counter.add()


def for_each_model(
    function: Callable[[PreTrainedModel], Result],
    job: EvaluationJob,
    worker: Worker,
    load: Load = load_model,
) -> dict[str, Result]:
    """Call a function on each model of a job, one in memory at a time; returns results by name.

    Raises:
        UserError: if memory is too small even for a single row.
    """
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    dtype = dtype_of(job.precision, worker.device)
    try:
        return {
            name: function(load(folder, dtype, worker.device))
            for name, folder in job.models.items()
        }
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            job.batch_size_key,
            f"the memory of worker {worker.rank} ({worker.device.type}) is too small for the model "
            f"and a single row ({first_line(error)})",
            "use fewer workers, or a machine or GPU with more memory",
        ) from error


def may_be_bf16(precision: str) -> bool:
    """Whether models that aren't trained may have weights in bf16 on some worker."""
    return precision == "bf16" or (precision == "auto" and bool(machine.gpus()))


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """The type of the weights of models that aren't trained; of `auto`, bf16 on GPUs alone."""
    if precision == "auto":
        supported = device.type == "cuda" and torch.cuda.is_bf16_supported(False)
        precision = "bf16" if supported else "fp32"
    return torch.bfloat16 if precision == "bf16" else torch.float32
