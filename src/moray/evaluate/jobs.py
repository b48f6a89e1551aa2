"""The evaluation jobs that run on workers: of N workers, each processes every N-th batch.

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
from moray.evaluate.generation import Sampling, continue_prompts
from moray.evaluate.likelihood import Scores, batches_of, score
from moray.evaluate.selection import select_documents
from moray.model.load import load_model
from moray.tokens.store import StoredSplit
from moray.workers.memory import is_out_of_memory
from moray.workers.progress import BatchCounter
from moray.workers.worker import Worker

Batch = TypeVar("Batch")
Result = TypeVar("Result")


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
class ScoreJob:
    """Score models on the same documents.

    Attributes:
        models: the models' folders, by name.
        tokens: token store.
        max_documents: number of documents of the test split to score; None for all.
        execution: how to run the job.
    """

    models: dict[str, Path]
    tokens: Path
    max_documents: int | None
    execution: Execution


@dataclass(frozen=True)
class GenerateJob:
    """Continue the same prompts with each model.

    Attributes:
        models: the models' folders, by name.
        prompts: tokens of each prompt.
        sampling: how tokens are chosen.
        execution: how to run the job.
    """

    models: dict[str, Path]
    prompts: list[list[int]]
    sampling: Sampling
    execution: Execution


def score_on_worker(job: ScoreJob, worker: Worker) -> dict[str, Scores]:
    """Score this worker's batches with each model."""
    split = StoredSplit(job.tokens, "test")
    selection = select_documents(split, job.max_documents)
    batches = batches_of(selection, job.execution.batch_size)

    def scores(model: PreTrainedModel) -> Scores:
        return score(model, split, selection, _own(batches, job.execution, worker))

    return _of_each_model(scores, job.models, job.execution, worker)


def continue_on_worker(job: GenerateJob, worker: Worker) -> dict[str, dict[int, list[int]]]:
    """Continue this worker's prompts with each model; returns new tokens by the prompt's number."""
    size = job.execution.batch_size
    numbers = range(len(job.prompts))
    batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]

    def continuations(model: PreTrainedModel) -> dict[int, list[int]]:
        written: dict[int, list[int]] = {}
        for batch in _own(batches, job.execution, worker):
            prompts = {number: job.prompts[number] for number in batch}
            written |= continue_prompts(model, prompts, job.sampling)
        return written

    return _of_each_model(continuations, job.models, job.execution, worker)


def num_batches(models: dict[str, Path], items: int, batch_size: int) -> int:
    """Number of batches that all workers process together."""
    return len(models) * -(-items // batch_size)


def _of_each_model(
    function: Callable[[PreTrainedModel], Result],
    models: dict[str, Path],
    execution: Execution,
    worker: Worker,
) -> dict[str, Result]:
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    dtype = _dtype(execution.precision, worker.device)
    try:
        return {
            name: function(load_model(folder, dtype, worker.device))
            for name, folder in models.items()
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


def _own(batches: Sequence[Batch], execution: Execution, worker: Worker) -> Iterator[Batch]:
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
