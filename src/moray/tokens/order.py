"""Which rows make up a step: a pure function of seed and step, whoever asks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Windows that are shuffled together. Rows of windows far apart meet, because windows are
# shuffled before; and what has to be held or fetched for a step is bounded, however large the
# corpus.
_WINDOWS_AT_ONCE = 8


@dataclass(frozen=True)
class Group:
    """Windows that are shuffled together in an epoch, and the part of their rows that is meant.

    Attributes:
        windows: the store's numbers of the windows.
        sizes: rows of each.
        seed: of the shuffle.
        low: first of the shuffled rows that is meant.
        high: behind the last one.
        first_position: position of row `low` in the order's sequence.
    """

    windows: tuple[int, ...]
    sizes: tuple[int, ...]
    seed: tuple[int, ...]
    low: int
    high: int
    first_position: int

    def picked(self) -> NDArray[np.int64]:
        """The rows that are meant, counted through the windows one after another."""
        return _permutation(sum(self.sizes), self.seed)[self.low : self.high]


class Order:
    """An endless sequence of shuffled epochs, cut into steps of `global_batch_size` rows.

    An epoch is the store's windows in shuffled order, and in each group of some windows their
    rows in shuffled order. Step s takes positions s·G to (s+1)·G of the sequence, so that every
    step is full, a step may reach into the next epoch, and resuming is arithmetic.
    """

    def __init__(self, windows: Sequence[int], global_batch_size: int, seed: int) -> None:
        """Take what the order is a function of.

        Args:
            windows: rows of each window of the store.
            global_batch_size: rows in a step.
            seed: of the shuffles.
        """
        self.num_rows = sum(windows)
        self.global_batch_size = global_batch_size
        self.seed = seed
        self._sizes = np.array(windows, np.int64)
        self._firsts = np.cumsum(self._sizes) - self._sizes
        self._layout = lru_cache(maxsize=2)(self._lay_out)

    def num_steps(self, num_epochs: float) -> int:
        """Steps that see each row `num_epochs` times, rounded up."""
        return math.ceil(num_epochs * self.num_rows / self.global_batch_size)

    def rows(self, step: int) -> NDArray[np.int64]:
        """The rows of a step, shape (global_batch_size,); steps count from 0."""
        first = step * self.global_batch_size
        groups = self.groups(first, first + self.global_batch_size)
        return np.concatenate([self._rows_of(group) for group in groups])

    def groups(self, first_position: int, end_position: int) -> Iterator[Group]:
        """What lies between two positions of the sequence, group by group."""
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
                # Not 0, which wouldn't count: windows are shuffled by (seed, epoch).
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
        return (np.repeat(firsts, group.sizes) + within)[group.picked()]

    def _lay_out(self, epoch: int) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The windows of each group of an epoch, and where in the epoch each group starts."""
        # A window without rows would make a group that no position lies in.
        windows = np.flatnonzero(self._sizes)
        shuffled = np.random.default_rng([self.seed, epoch]).permutation(windows)
        cuts = range(_WINDOWS_AT_ONCE, len(shuffled), _WINDOWS_AT_ONCE)
        members = np.split(shuffled, list(cuts))
        sizes = np.array([self._sizes[group].sum() for group in members])
        return members, np.cumsum(sizes) - sizes


# A step can straddle two groups; without the cache each step would shuffle anew.
@lru_cache(maxsize=2)
def _permutation(num_rows: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(num_rows)
