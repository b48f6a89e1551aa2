"""Which rows of one or more stores make up a step: a pure function of the seed and the step."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moray.rows.order import Order


class Interleaving:
    """A sequence of positions that belong to stores in fixed shares.

    A position belongs to the store that lags behind its share, so any part of the sequence has the
    shares to within a row or two, and how many rows of each store come before a position can be
    computed directly.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        """Define the sequence.

        Args:
            shares: share of each store in the positions; positive, of any sum.
        """
        rest = np.cumsum(shares[::-1])[::-1]
        # The part of each store in what the stores before it leave.
        self._parts = (np.asarray(shares) / rest).tolist()

    def counts(self, position: int) -> list[int]:
        """How many positions of each store come before a position."""
        return [int(count) for count in self._counts(np.array([position]))[:, 0]]

    def stores(self, first: int, end: int) -> NDArray[np.int64]:
        """The store of each position from `first` to `end` (exclusive), shape (end - first,)."""
        counts = self._counts(np.arange(first, end + 1))
        owners: NDArray[np.int64] = np.diff(counts, axis=1).argmax(axis=0)
        return owners

    def positions(self, store: int, low: int, high: int) -> NDArray[np.int64]:
        """Positions number `low` to `high` (exclusive) of a store, shape (high - low,)."""
        first, end = self._position(store, low), self._position(store, high - 1) + 1
        return first + np.flatnonzero(self.stores(first, end) == store)

    def _position(self, store: int, number: int) -> int:
        """The position with a number among those of a store, found by bisection."""
        low, high = number, number + 1
        while self.counts(high)[store] <= number:
            high *= 2
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.counts(middle)[store] > number else (middle, high)
        return low

    def _counts(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions of each store before each position, shape (stores, positions)."""
        counts, left = [], positions
        for part in self._parts:
            # Rises by at most one from each position to the next, and so does what is left.
            counts.append(np.floor(left * part + 0.5).astype(np.int64))
            left = left - counts[-1]
        return np.stack(counts)


class Mixture:
    """An endless sequence of rows of all stores in fixed shares, cut into steps.

    Each store has an `Order` of its own. Step s takes positions s·G to (s+1)·G of the sequence,
    where G is `global_batch_size`. So every step is full, and a run can resume at any step without
    replaying earlier ones.

    Attributes:
        orders: the order of each store's rows.
        interleaving: which store each position belongs to.
        global_batch_size: rows in a step.
        seed: seed of the orders.
        num_rows: number of rows of all stores.
    """

    def __init__(
        self,
        windows: Sequence[Sequence[int]],
        shares: Sequence[float],
        global_batch_size: int,
        seed: int,
    ) -> None:
        """Define the sequence.

        Args:
            windows: number of rows in each window, for each store.
            shares: share of each store in the rows; positive, of any sum.
            global_batch_size: rows in a step.
            seed: seed of the orders.
        """
        self.orders = [Order(sizes, seed) for sizes in windows]
        self.interleaving = Interleaving(shares)
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.num_rows = sum(order.num_rows for order in self.orders)

    def num_steps(self, num_epochs: float) -> int:
        """Number of steps for `num_epochs` times the rows of all stores, rounded up."""
        return math.ceil(num_epochs * self.num_rows / self.global_batch_size)

    def counts(self, step: int) -> list[int]:
        """How many rows of each store come before a step."""
        return self.interleaving.counts(step * self.global_batch_size)

    def stores(self, step: int) -> NDArray[np.int64]:
        """The store of each row of a step, shape (global_batch_size,)."""
        size = self.global_batch_size
        return self.interleaving.stores(step * size, (step + 1) * size)

    def rows(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of a step, which counts from 0.

        Returns:
            The store of each row, and its number in that store, both of shape
            (global_batch_size,).
        """
        stores = self.stores(step)
        numbers = np.empty_like(stores)
        spans = zip(self.orders, self.counts(step), self.counts(step + 1), strict=True)
        for store, (order, low, high) in enumerate(spans):
            numbers[stores == store] = order.rows(low, high)
        return stores, numbers
