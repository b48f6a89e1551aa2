"""How evaluation jobs run on workers: of N workers, each processes every N-th batch.

Batches depend only on the rows, so results don't depend on the number of workers, and those that an
earlier process has on disk aren't computed again. Models are loaded one after another, so that only
one is in memory.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from moray import machine
from moray.errors import UserError, first_line
from moray.evaluate.batches import SUFFIX, Arrays, Batch, BatchResults, BatchWriter
from moray.model.load import load_model
from moray.proofs.comparison import Comparison
from moray.workers.entry import BatchCounter, EntryPoint, Worker
from moray.workers.memory import is_out_of_memory

Items = TypeVar("Items", NDArray[np.int64], range, list[Any])
Result = TypeVar("Result")

Load = Callable[[Path, torch.dtype, torch.device], PreTrainedModel]
"""Loads a model from a folder, with weights of a type, to a device."""

Compute = Callable[[PreTrainedModel, str, Iterable[NDArray[np.int64]]], Iterator[Arrays]]
"""Computes with a model what is kept of batches of a part of a job, one after the other."""


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
        batches: folder for the results of batches, which all workers and later processes with the
            same job see; None without such a folder.
    """

    folder: Path
    batch_size: int
    batch_size_key: str
    precision: str
    threads: int | None
    models: dict[str, Path] = field(default_factory=dict)
    stores: tuple[Path, ...] = ()
    batches: Path | None = None

    def with_inputs(self, here: Callable[[Path], Path]) -> Self:
        """The job with other places of its models and its stores."""
        models = {name: here(folder) for name, folder in self.models.items()}
        return replace(self, models=models, stores=tuple(map(here, self.stores)))


@dataclass(frozen=True)
class BatchStore:
    """Results of batches on disk: those of earlier processes, and those that this worker adds."""

    _earlier: BatchResults
    _writer: BatchWriter
    _counter: BatchCounter

    def read(self, batch: Batch) -> Arrays | None:
        """The result of an earlier process; None if there is none."""
        return self._earlier.read(batch)

    def add(self, batch: Batch, arrays: Arrays) -> None:
        """Append a result, which is on disk soon, and count it.

        Raises:
            UserError: if the disk is full.
        """
        self._writer.add(batch, arrays)
        self._counter.add()


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


def files_of_batches(rank: int) -> tuple[str, ...]:
    """The file of a worker's results in the job's folder, where they are without `batches`."""
    return (f"{rank}{SUFFIX}",)


def batch_results(
    compute: Compute,
    parts: Mapping[str, NDArray[np.int64]],
    job: EvaluationJob,
    worker: Worker,
    load: Load = load_model,
) -> Iterator[tuple[Batch, Arrays]]:
    """Yield the results of this worker's batches, and count those that it computes.

    They are on disk when they are yielded, or soon after. A model is only loaded for batches that
    aren't there yet.

    Args:
        parts: the rows or prompts to process with each model, by the name of a part.

    Raises:
        UserError: if memory is too small even for a single row, or the disk is full.
    """
    own = [
        (part, number, batch)
        for part, items in parts.items()
        for number, batch in enumerate(batches_of(items, job.batch_size))
        if number % worker.world_size == worker.rank
    ]
    with _open_store(job, worker) as store, _prepared(job, worker) as dtype:
        for model, folder in job.models.items():
            rest = []
            for part, number, items in own:
                batch = Batch(model, part, number)
                if (arrays := store.read(batch)) is None:
                    rest.append((batch, items))
                else:
                    yield batch, arrays
            if rest:
                for batch, arrays in _compute(compute, load(folder, dtype, worker.device), rest):
                    store.add(batch, arrays)
                    yield batch, arrays


@contextmanager
def _open_store(job: EvaluationJob, worker: Worker) -> Iterator[BatchStore]:
    name = f"{worker.rank}.unfinished" if job.batches is None else f"{uuid.uuid4().hex}{SUFFIX}"
    file = (job.batches or job.folder) / name
    with BatchWriter(file, worker.world_size) as writer:
        counter = BatchCounter(job.folder, worker.rank)
        yield BatchStore(BatchResults(job.batches), writer, counter)
    if job.batches is None and file.exists():
        # Where there is no shared folder, a file is sent once it has its name.
        file.replace(file.with_name(*files_of_batches(worker.rank)))


def _compute(
    compute: Compute, model: PreTrainedModel, rest: Iterable[tuple[Batch, NDArray[np.int64]]]
) -> Iterator[tuple[Batch, Arrays]]:
    for part, some in groupby(rest, lambda one: one[0].part):
        batches, items = zip(*some, strict=True)
        yield from zip(batches, compute(model, part, items), strict=True)


def for_each_model(
    function: Callable[[str, PreTrainedModel, BatchStore], Result],
    job: EvaluationJob,
    worker: Worker,
    load: Load = load_model,
) -> dict[str, Result]:
    """Call a function on each of this worker's models, one in memory at a time.

    Of N workers, each has every N-th model.

    Args:
        function: gets the model's name, the model, and the store of results of its batches.

    Returns:
        What the function returned, by the model's name.

    Raises:
        UserError: if memory is too small even for a single row.
    """
    with _open_store(job, worker) as store, _prepared(job, worker) as dtype:
        return {
            name: function(name, load(job.models[name], dtype, worker.device), store)
            for name in list(job.models)[worker.rank :: worker.world_size]
        }


@contextmanager
def _prepared(job: EvaluationJob, worker: Worker) -> Iterator[torch.dtype]:
    """Set the threads for a body that computes with models; yields the type of their weights.

    Raises:
        UserError: if the body runs out of memory, which it does for a single row.
    """
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    try:
        yield dtype_of(job.precision, worker.device)
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
