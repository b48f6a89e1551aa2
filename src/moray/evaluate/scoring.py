"""The job of scoring models on workers."""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from moray.evaluate.execution import Execution, of_each_model, own_batches
from moray.evaluate.likelihood import Scores, batches_of, score
from moray.evaluate.selection import select_documents
from moray.tasks.language.store import StoredSplit
from moray.workers.worker import Worker


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


def score_on_worker(job: ScoreJob, worker: Worker) -> dict[str, Scores]:
    """Score this worker's batches with each model."""
    split = StoredSplit(job.tokens, "test")
    selection = select_documents(split, job.max_documents)
    batches = batches_of(selection, job.execution.batch_size)

    def scores(model: PreTrainedModel) -> Scores:
        return score(model, split, selection, own_batches(batches, job.execution, worker))

    return of_each_model(scores, job.models, job.execution, worker)
