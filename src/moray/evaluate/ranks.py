"""Figures of the order of scores."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def auroc(scores: Array, truth: Array) -> Callable[[Array], float]:
    """The area under the curve of two classes: how often the second scores above the first."""
    distinct, places = np.unique(scores, return_inverse=True)

    def area(counts: Array) -> float:
        first, second = (np.bincount(places, counts * (truth == n), len(distinct)) for n in (0, 1))
        below = np.cumsum(first) - first / 2
        pairs = first.sum() * second.sum()
        # A resample can have one class.
        return float(second @ below / pairs) if pairs else float("nan")

    return area
