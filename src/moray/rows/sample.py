"""The sample of a split that is scored instead of all of it."""

import numpy as np
from numpy.typing import NDArray


def sample(total: int, count: int) -> NDArray[np.int64]:
    """Draw numbers below `total` without replacement.

    The seed is fixed, so that every evaluation, run and number of workers scores the same sample.
    A smaller sample is a subset of a larger one.

    Returns:
        Ascending numbers, shape (min(count, total),).
    """
    return np.sort(np.random.default_rng(0).permutation(total)[:count])
