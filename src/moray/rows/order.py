"""The order of a store's rows: a pure function of the seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Number of windows whose rows are shuffled together. The windows are shuffled first, so rows from
# distant windows still mix, while the data needed for a step is bounded for any size of corpus.
_WINDOWS_AT_ONCE = 8


@dataclass(frozen=True)
class Drawn:
    """Where in an order's sequence rows are: a position says both epoch and row.

    Attributes:
        seed: seed of the order.
        positions: shape (rows,).
    """

    seed: int
    positions: NDArray[np.int64]

    def at(self, indices: NDArray[np.int64]) -> "Drawn":
        """Some of the rows."""
        return Drawn(self.seed, self.positions[indices])


@dataclass(frozen=True)
class Group:
    """Windows whose rows are shuffled together in an epoch, and a range of the shuffled rows.

    Attributes:
        windows: numbers of the windows in the store.
        sizes: number of rows in each window.
        seed: seed of the shuffle.
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

    def picked(self) -> NDArray[np.int64]:
        """The rows in the range, as indices into the concatenated windows."""
        return _permutation(sum(self.sizes), self.seed)[self.low : self.high]


class Order:
    """An endless sequence of shuffled epochs.

    An epoch shuffles the store's windows, splits them into groups, and shuffles the rows of each
    group. The rows at any position can be found without those before it.
    """

    def __init__(self, windows: Sequence[int], seed: int) -> None:
        """Define the order.

        Args:
            windows: number of rows in each window of the store.
            seed: seed of the shuffles.
        """
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
        shuffled = self._permutation(sum(group.sizes), group.seed)
        return (np.repeat(firsts, group.sizes) + within)[shuffled[group.low : group.high]]

    def _lay_out(self, epoch: int) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The windows of each group of an epoch, and where each group starts in the epoch."""
        # Windows without rows could make an empty group, which contains no position.
        windows = np.flatnonzero(self._sizes)
        shuffled = np.random.default_rng([self.seed, epoch]).permutation(windows)
        cuts = range(_WINDOWS_AT_ONCE, len(shuffled), _WINDOWS_AT_ONCE)
        members = np.split(shuffled, list(cuts))
        sizes = np.array([self._sizes[group].sum() for group in members])
        return members, np.cumsum(sizes) - sizes


def _permutation(num_rows: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(num_rows)
