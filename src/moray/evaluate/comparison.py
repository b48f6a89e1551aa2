"""Compare the likelihood of held-out text under two models."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.evaluate.bootstrap import compare
from moray.evaluate.likelihood import Scores

# With fewer documents, their variance can't be estimated: with one, intervals would have no width.
_MIN_DOCUMENTS = 20


def figures(scores: Scores) -> dict[str, float]:
    """Compute metrics over all pieces.

    Returns:
        `loss`: nats per token; `perplexity`: its exponential; `bits_per_byte`: bits per byte of
        text, including those of the stop tokens; `accuracy`: share of the tokens that the model
        found likeliest.
    """
    return _figures(_sums(scores).sum(axis=0))


def compare_scores(base: Scores, tuned: Scores, samples: int, confidence: float) -> dict[str, Any]:
    """Compute the metrics of two models and their difference, with bootstrap intervals.

    Resamples documents, because the tokens of a document aren't independent; pieces of documents if
    there are too few documents.

    Args:
        base: scores of the base model.
        tuned: scores of the tuned model, for the same pieces in the same order.
        samples: number of resamples.
        confidence: coverage of the intervals.

    Returns:
        `resampled`: `documents` or `pieces`; and what `compare` returns.
    """
    unit = "documents" if len(np.unique(base.document)) >= _MIN_DOCUMENTS else "pieces"
    if unit == "documents":
        base, tuned = base.by_document(), tuned.by_document()
    compared = compare(_sums(base), _sums(tuned), _figures, samples, confidence)
    return {"resampled": unit} | compared


def _sums(scores: Scores) -> NDArray[np.float64]:
    columns = scores.nll, scores.tokens, scores.bytes, scores.correct
    return np.stack(columns, axis=1).astype(np.float64)


def _figures(sums: NDArray[np.float64]) -> dict[str, float]:
    nll, tokens, size, correct = sums.tolist()
    loss = nll / tokens
    return {
        "loss": loss,
        "perplexity": float(np.exp(loss)),
        # A resample of few pieces can consist of stop tokens only.
        "bits_per_byte": nll / math.log(2) / size if size else math.inf,
        "accuracy": correct / tokens,
    }
