"""The sample that stands for a whole split when only part of it is scored."""

import numpy as np
from numpy.typing import NDArray


def sample(total: int, count: int) -> NDArray[np.int64]:
    """Draw numbers below `total` without replacement.

    The seed is fixed, so that every evaluation, every run and any number of workers score the
    same sample. A smaller sample is part of a larger one.

    Args:
        total: size of the population.
        count: size of the sample; all numbers if there are no more.

    Returns:
        Ascending numbers, shape (min(count, total),).
    """
    return np.sort(np.random.default_rng(0).permutation(total)[:count])
