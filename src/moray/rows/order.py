"""The rows of each step, from one or more stores: a pure function of the seed and the step."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Number of windows whose rows are shuffled together. The windows are shuffled first, so rows from
# distant windows still mix, while the data needed for a step is bounded for any size of corpus.
_WINDOWS_AT_ONCE = 8


@dataclass(frozen=True)
class Group:
    """Windows whose rows are shuffled together in an epoch, and a range of the shuffled rows.

    Attributes:
        sizes: number of rows in each window.
        low: start of the range.
        high: end of the range (exclusive).
        first_position: position of row `low` in the order's sequence.
    """

    windows: tuple[int, ...]
    sizes: tuple[int, ...]
    seed: tuple[int, ...]
    low: int
    high: int
    first_position: int

    def indices(self) -> NDArray[np.int64]:
        """The rows in the range, as indices into the concatenated windows."""
        return _permutation(sum(self.sizes), self.seed)[self.low : self.high]


class Order:
    """An endless sequence of shuffled epochs.

    An epoch shuffles the store's windows, splits them into groups, and shuffles the rows of each
    group. The rows at any position can be found without those before it.
    """

    def __init__(self, windows: Sequence[int], seed: int) -> None:
        """Define the order of a store with so many rows in each window."""
        self.num_rows = sum(windows)
        self.seed = seed
        self._sizes = np.array(windows, np.int64)
        self._firsts = np.cumsum(self._sizes) - self._sizes
        self._layout = lru_cache(maxsize=2)(self._lay_out)
        # A step can span two groups. Without the cache, each step would shuffle its groups again.
        self._permutation = lru_cache(maxsize=2)(_permutation)

    def rows(self, first_position: int, end_position: int) -> NDArray[np.int64]:
        """The rows between two positions of the sequence, shape (positions,)."""
        groups = self.groups(first_position, end_position)
        none = np.empty(0, np.int64)
        return np.concatenate([none, *(self._rows_of(group) for group in groups)])

    def groups(self, first_position: int, end_position: int) -> Iterator[Group]:
        """Yield the rows between two positions of the sequence, group by group."""
        position = first_position
        while position < end_position:
            epoch, within = divmod(position, self.num_rows)
            members, starts = self._layout(epoch)
            number = int(np.searchsorted(starts, within, side="right")) - 1
            start = epoch * self.num_rows + int(starts[number])
            size = int(self._sizes[members[number]].sum())
            high = min(end_position - start, size)
            yield Group(
                windows=tuple(members[number].tolist()),
                sizes=tuple(self._sizes[members[number]].tolist()),
                # From 1: NumPy ignores a trailing 0, and (seed, epoch) already shuffles windows.
                seed=(self.seed, epoch, number + 1),
                low=position - start,
                high=high,
                first_position=position,
            )
            position = start + high

    def _rows_of(self, group: Group) -> NDArray[np.int64]:
        firsts = self._firsts[list(group.windows)]
        within = np.arange(sum(group.sizes)) - np.repeat(
            np.cumsum(group.sizes) - group.sizes, group.sizes
        )
        permutation = self._permutation(sum(group.sizes), group.seed)
        return (np.repeat(firsts, group.sizes) + within)[permutation[group.low : group.high]]

    def _lay_out(self, epoch: int) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The windows of each group of an epoch, and where each group starts in the epoch."""
        # Windows without rows could make an empty group, which contains no position.
        windows = np.flatnonzero(self._sizes)
        permutation = np.random.default_rng([self.seed, epoch]).permutation(windows)
        cuts = range(_WINDOWS_AT_ONCE, len(permutation), _WINDOWS_AT_ONCE)
        members = np.split(permutation, list(cuts))
        sizes = np.array([self._sizes[group].sum() for group in members])
        return members, np.cumsum(sizes) - sizes


def _permutation(num_rows: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(num_rows)


class Interleaving:
    """A sequence of positions that belong to stores in fixed shares.

    A position belongs to the store that lags behind its share, so any part of the sequence has the
    shares to within a row or two, and how many rows of each store come before a position can be
    computed directly.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        """Define the sequence by the stores' shares, which are positive and have any sum."""
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

        def count(position: int) -> int:
            return self.counts(position)[store]

        end = number + 1
        while count(end) <= number:
            end *= 2
        return bisect_right(range(end), number, key=count) - 1

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
