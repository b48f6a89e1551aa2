"""Language models: compare the likelihood of held-out documents."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from moray.evaluate.batches import Arrays
from moray.evaluate.bootstrap import compare, sums_of_units, units_to_resample
from moray.evaluate.worker import (
    Evaluation,
    EvaluationJob,
    batch_results,
    may_be_bf16,
)
from moray.proofs.comparison import Comparison
from moray.tasks.language.likelihood import (
    Scores,
    figures,
    score_batches,
    select_documents,
    total,
)
from moray.tasks.language.proofs.scores import compare_scores_with_plain
from moray.tasks.language.rows import StoredSplit
from moray.workers.entry import Worker


def score_on_worker(
    job: EvaluationJob, worker: Worker, max_documents: int | None
) -> dict[str, list[Scores]]:
    """Score this worker's batches of the test split of each store with each model.

    Args:
        max_documents: number of documents to score in each store; None for all.
    """
    splits = [StoredSplit(store, "test") for store in job.stores]
    selections = [select_documents(split, max_documents) for split in splits]

    def compute(
        model: PreTrainedModel, part: str, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[Arrays]:
        return score_batches(model, splits[int(part)], selections[int(part)], batches)

    scores = {name: [*map(Scores.of_nothing, splits, selections)] for name in job.models}
    parts = {str(number): selection.rows for number, selection in enumerate(selections)}
    for batch, arrays in batch_results(compute, parts, job, worker):
        scores[batch.model][int(batch.part)].add(arrays)
    return scores


def evaluation(
    models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
) -> Evaluation:
    """Compare models on all datasets together and, if there are several, on each."""
    most, confidence = cfg["max_documents"], cfg["confidence"]
    rows = [len(select_documents(StoredSplit(store, "test"), most).rows) for store in stores]

    def scores_of(base: Scores, tuned: Scores, rows: int) -> dict[str, Any]:
        return {
            "rows": rows,
            "documents": len(np.unique(base.document)),
            "tokens": int(base.tokens.sum()),
            "bytes": int(base.bytes.sum()),
            "confidence": confidence,
            **compare_scores(base, tuned, cfg["bootstrap_samples"], confidence),
        }

    def all_scores(results: list[dict[str, list[Scores]]]) -> dict[str, Any]:
        base, tuned = (
            [total(parts) for parts in zip(*(result[name] for result in results), strict=True)]
            for name in ("base", "tuned")
        )
        whole = scores_of(join_scores(base), join_scores(tuned), sum(rows))
        if len(stores) > 1:
            each = map(scores_of, base, tuned, rows)
            whole["datasets"] = dict(zip(cfg["datasets"], each, strict=True))
        return whole

    def proof(results: list[dict[str, list[Scores]]], seconds: float) -> Iterator[Comparison]:
        split = StoredSplit(stores[0], "test")
        segments = select_documents(split, most).segments
        nll = {name: total([result[name][0] for result in results]).nll for name in models}
        bf16 = may_be_bf16(cfg["precision"])
        return compare_scores_with_plain(models, split.rows, segments, nll, seconds, bf16)

    return Evaluation(
        figures=("bits_per_byte", "accuracy"),
        rows=rows,
        entry_point=partial(score_on_worker, max_documents=most),
        scores=all_scores,
        proof=proof,
    )


def join_scores(parts: Sequence[Scores]) -> Scores:
    """The scores of several datasets as those of one, in which their documents stay apart."""
    sizes = [int(part.document.max(initial=-1)) + 1 for part in parts]
    firsts = np.cumsum([0, *sizes[:-1]])
    numbers = (
        [first + numbers for first, numbers in zip(firsts, columns, strict=True)]
        for columns in ([part.document for part in parts], [part.group for part in parts])
    )
    return Scores(
        *map(np.concatenate, numbers),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("nll", "tokens", "bytes", "correct")
        ),
    )


def compare_scores(base: Scores, tuned: Scores, samples: int, confidence: float) -> dict[str, Any]:
    """Compute the figures of two models and their difference, with bootstrap intervals.

    Both have scores of the same pieces. Resamples groups of documents, because the tokens of a
    group aren't independent; documents, or pieces of them, if there are too few.

    Returns:
        `resampled`: `groups`, `documents` or `pieces`; and what `compare` returns.
    """
    pieces = np.arange(len(base.document))
    name, units = units_to_resample(
        {"groups": base.group, "documents": base.document, "pieces": pieces}
    )
    before, after = (sums_of_units(scores.sums(), units) for scores in (base, tuned))
    return {"resampled": name} | compare(before, after, figures, samples, confidence)
