"""The jobs of scoring pairs of answers on workers."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from moray.evaluate.execution import EvaluationJob, of_each_model, own_batches
from moray.evaluate.likelihood import Scores, batches_of, score
from moray.evaluate.selection import select_documents
from moray.provenance.manifest import read_manifest
from moray.rows.store import Rows
from moray.tasks.language.batch import Batch, make_batch
from moray.tasks.language.store import StoredSplit
from moray.tasks.preference.rows import as_sequences
from moray.workers.worker import Worker


@dataclass(frozen=True)
class ScorePairsJob(EvaluationJob):
    """Score both answers of pairs with each model; the rows are of one token store.

    Attributes:
        splits: the splits to score.
        max_documents: number of pairs to score in each split; None for all.
    """

    splits: Sequence[str]
    max_documents: int | None


def score_pairs_on_worker(job: ScorePairsJob, worker: Worker) -> dict[str, dict[str, Scores]]:
    """Score this worker's batches with each model; returns scores by model and split."""
    (tokens,) = job.stores
    packing = read_manifest(tokens)["recipe"]["packing"]

    def make(rows: Rows) -> Batch:
        return make_batch(as_sequences(rows, packing))

    def of_split(model: PreTrainedModel, name: str) -> Scores:
        split = StoredSplit(tokens, name)
        selection = select_documents(split, job.max_documents)
        batches = batches_of(selection, job.execution.batch_size)
        return score(model, split, selection, own_batches(batches, job.execution, worker), make)

    def scores(model: PreTrainedModel) -> dict[str, Scores]:
        return {name: of_split(model, name) for name in job.splits}

    return of_each_model(scores, job.models, job.execution, worker)
