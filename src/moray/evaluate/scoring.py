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
        tokens: token stores.
        max_documents: number of documents of each test split to score; None for all.
        execution: how to run the job.
    """

    models: dict[str, Path]
    tokens: list[Path]
    max_documents: int | None
    execution: Execution


def score_on_worker(job: ScoreJob, worker: Worker) -> dict[str, list[Scores]]:
    """Score this worker's batches of each store with each model."""
    splits = [StoredSplit(store, "test") for store in job.tokens]
    selections = [select_documents(split, job.max_documents) for split in splits]

    def scores(model: PreTrainedModel) -> list[Scores]:
        found = []
        for split, selection in zip(splits, selections, strict=True):
            batches = batches_of(selection, job.execution.batch_size)
            own = own_batches(batches, job.execution, worker)
            found.append(score(model, split, selection, own))
        return found

    return of_each_model(scores, job.models, job.execution, worker)
