"""Bootstrap intervals of a model's figures, and of their difference from another model's."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sums = NDArray[Any]
"""What figures are computed from, for each unit that is resampled, shape (units, sums)."""

Figures = Callable[[NDArray[Any]], dict[str, float]]
"""Computes figures from sums over units, shape (sums,)."""


def compare(
    base: Sums, tuned: Sums, figures: Figures, samples: int, confidence: float
) -> dict[str, Any]:
    """Compute the figures of two models and their difference, with intervals.

    Percentile bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993,
    chapter 13). Both models use the same resamples, so the difference is paired.

    Args:
        base: sums of the base model.
        tuned: sums of the tuned model, for the same units in the same order.
        figures: computes the figures.
        samples: number of resamples.
        confidence: coverage of the intervals.

    Returns:
        For each of `base`, `tuned` and `difference` (tuned minus base), the `value`, `low` and
        `high` of each figure.
    """
    points = _with_difference(figures(base.sum(axis=0)), figures(tuned.sum(axis=0)))
    resampled = [
        _with_difference(figures(weights @ base), figures(weights @ tuned))
        for weights in _weights(len(base), samples)
    ]
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
