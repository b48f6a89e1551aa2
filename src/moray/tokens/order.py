"""Which rows make up a step: a pure function of seed and step, whoever asks."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class Order:
    """An endless sequence of shuffled epochs, cut into steps of `global_batch_size` rows.

    Step s takes places s·G to (s+1)·G of the sequence, so that every step is full, a step may
    reach into the next epoch, and resuming is arithmetic.
    """

    def __init__(self, num_rows: int, global_batch_size: int, seed: int) -> None:
        self.num_rows = num_rows
        self.global_batch_size = global_batch_size
        self.seed = seed

    def num_steps(self, num_epochs: float) -> int:
        """Steps that see each row `num_epochs` times, rounded up."""
        return math.ceil(num_epochs * self.num_rows / self.global_batch_size)

    def rows(self, step: int) -> NDArray[np.int64]:
        """The rows of a step, shape (global_batch_size,); steps count from 0."""
        places = step * self.global_batch_size + np.arange(self.global_batch_size)
        epochs, within = np.divmod(places, self.num_rows)
        rows = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = _permutation(self.num_rows, self.seed, int(epoch))[within[here]]
        return rows


# A step can straddle two epochs; without the cache each step would shuffle anew.
@lru_cache(maxsize=2)
def _permutation(num_rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)
