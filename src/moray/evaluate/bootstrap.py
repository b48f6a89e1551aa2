"""Figures of a test split with intervals, by resampling its documents."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.evaluate.likelihood import DocumentScores


def figures(scores: DocumentScores) -> dict[str, float]:
    """What the sums of all documents come to.

    Returns:
        `loss`: nats a token; `perplexity`: its exponential; `bits_per_byte`: bits that the
        model needs for a byte of text, stop tokens included; `accuracy`: share of the tokens
        that were the likeliest.
    """
    return _figures(*(float(column.sum()) for column in _columns(scores)))


def compare(
    base: DocumentScores, tuned: DocumentScores, samples: int, confidence: float
) -> dict[str, dict[str, Any]]:
    """Figures of two models on the same documents, and of their difference, with intervals.

    Percentile bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993,
    chapter 13) over documents, because the tokens of one document are not independent. Both
    models get the same resamples, so that the difference is a paired one.

    Args:
        base: scores of the one model.
        tuned: scores of the other, of the same documents in the same order.
        samples: number of resamples.
        confidence: coverage of the intervals.

    Returns:
        For `base`, `tuned` and `difference` (tuned less base), for each figure its `value`,
        `low` and `high`.
    """
    points = {"base": figures(base), "tuned": figures(tuned)}
    points["difference"] = _difference(points)
    resampled = []
    for weights in _weights(len(base.nll), samples):
        pair = {
            name: _figures(*(float(weights @ column) for column in _columns(scores)))
            for name, scores in (("base", base), ("tuned", tuned))
        }
        resampled.append({**pair, "difference": _difference(pair)})
    tail = (1 - confidence) / 2
    return {
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


def _weights(documents: int, samples: int) -> Iterator[NDArray[np.int64]]:
    """How often each document is drawn; a fixed seed, so that figures don't move on a rerun."""
    random = np.random.default_rng(0)
    for _ in range(samples):
        yield np.bincount(random.integers(documents, size=documents), minlength=documents)


def _columns(scores: DocumentScores) -> tuple[NDArray[Any], ...]:
    return scores.nll, scores.tokens, scores.bytes, scores.correct


def _figures(nll: float, tokens: float, size: float, correct: float) -> dict[str, float]:
    loss = nll / tokens
    return {
        "loss": loss,
        "perplexity": math.exp(loss),
        "bits_per_byte": nll / math.log(2) / size,
        "accuracy": correct / tokens,
    }


def _difference(pair: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: pair["tuned"][name] - value for name, value in pair["base"].items()}
