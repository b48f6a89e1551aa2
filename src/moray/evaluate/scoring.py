"""The job of scoring models on workers."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from moray.evaluate.execution import EvaluationJob, of_each_model, own_batches
from moray.evaluate.likelihood import Scores, batches_of, score
from moray.evaluate.selection import select_documents
from moray.tasks.language.store import StoredSplit
from moray.workers.worker import Worker


@dataclass(frozen=True)
class ScoreJob(EvaluationJob):
    """Score models on the same documents of token stores.

    Attributes:
        max_documents: number of documents of each test split to score; None for all.
    """

    max_documents: int | None


def score_on_worker(job: ScoreJob, worker: Worker) -> dict[str, list[Scores]]:
    """Score this worker's batches of each store with each model."""
    splits = [StoredSplit(store, "test") for store in job.stores]
    selections = [select_documents(split, job.max_documents) for split in splits]

    def scores(model: PreTrainedModel) -> list[Scores]:
        found = []
        for split, selection in zip(splits, selections, strict=True):
            batches = batches_of(selection, job.execution.batch_size)
            own = own_batches(batches, job.execution, worker)
            found.append(score(model, split, selection, own))
        return found

    return of_each_model(scores, job.models, job.execution, worker)
