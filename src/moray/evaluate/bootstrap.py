"""Metrics on a test split, with bootstrap intervals."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    return _figures(*(float(column.sum()) for column in _columns(scores)))


def compare(base: Scores, tuned: Scores, samples: int, confidence: float) -> dict[str, Any]:
    """Compute the metrics of two models and their difference, with intervals.

    Percentile bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993,
    chapter 13) over documents, because the tokens of a document aren't independent; over pieces
    of documents if there are too few documents. Both models use the same resamples, so the
    difference is paired.

    Args:
        base: scores of the base model.
        tuned: scores of the tuned model, for the same pieces in the same order.
        samples: number of resamples.
        confidence: coverage of the intervals.

    Returns:
        `resampled`: `documents` or `pieces`; and for each of `base`, `tuned` and `difference`
        (tuned minus base), the `value`, `low` and `high` of each metric.
    """
    unit = "documents" if len(np.unique(base.document)) >= _MIN_DOCUMENTS else "pieces"
    if unit == "documents":
        base, tuned = base.by_document(), tuned.by_document()
    points = _with_difference(figures(base), figures(tuned))
    resampled = [
        _with_difference(
            *(
                _figures(*(float(weights @ column) for column in _columns(scores)))
                for scores in (base, tuned)
            )
        )
        for weights in _weights(len(base.nll), samples)
    ]
    tail = (1 - confidence) / 2
    return {"resampled": unit} | {
        name: {
            figure: {
                "value": value,
                "low": float(np.quantile([one[name][figure] for one in resampled], tail)),
                "high": float(np.quantile([one[name][figure] for one in resampled], 1 - tail)),
            }
            for figure, value in point.items()
        }
        for name, point in points.items()
    }


def _weights(units: int, samples: int) -> Iterator[NDArray[np.int64]]:
    """How often each unit is drawn. The seed is fixed, so that a rerun gives the same results."""
    random = np.random.default_rng(0)
    for _ in range(samples):
        yield np.bincount(random.integers(units, size=units), minlength=units)


def _with_difference(
    base: dict[str, float], tuned: dict[str, float]
) -> dict[str, dict[str, float]]:
    difference = {name: tuned[name] - value for name, value in base.items()}
    return {"base": base, "tuned": tuned, "difference": difference}


def _columns(scores: Scores) -> tuple[NDArray[Any], ...]:
    return scores.nll, scores.tokens, scores.bytes, scores.correct


def _figures(nll: float, tokens: float, size: float, correct: float) -> dict[str, float]:
    loss = nll / tokens
    return {
        "loss": loss,
        "perplexity": float(np.exp(loss)),
        # A resample of few pieces can consist of stop tokens only.
        "bits_per_byte": nll / math.log(2) / size if size else math.inf,
        "accuracy": correct / tokens,
    }
