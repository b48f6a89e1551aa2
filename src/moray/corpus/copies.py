"""Which rows to train on are copies of other rows."""

from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Copy(IntEnum):
    """What a row to train on is a copy of."""

    NONE = 0
    EXACT = 1
    """An earlier row to train on."""
    NEAR = 2
    """Nearly an earlier row to train on."""
    NEAR_HELD_OUT = 3
    """Nearly a row that is held out."""


class Copies(Protocol):
    """Finds copies among the rows of a dataset, which are noted one part after another."""

    def note(
        self,
        is_train: NDArray[np.bool_],
        identities: NDArray[np.bytes_],
        sketches: NDArray[np.bytes_] | None,
    ) -> None:
        """Note rows.

        Args:
            is_train: whether each is to train on, shape (rows,).
            identities: the digest of each one's content, 16 bytes.
            sketches: see `staging.Sketches`, as bytes.
        """

    def find(self) -> NDArray[np.uint8]:
        """The `Copy` of each row to train on, in their order, shape (rows,)."""


class ExactCopies:
    """Finds rows to train on that have the content of an earlier one.

    Takes 16 bytes of memory for each row to train on, and about 45 while `find` sorts them.
    """

    def __init__(self) -> None:
        self._identities = bytearray()

    def note(
        self,
        is_train: NDArray[np.bool_],
        identities: NDArray[np.bytes_],
        sketches: NDArray[np.bytes_] | None = None,
    ) -> None:
        self._identities += identities[is_train].tobytes()

    def find(self) -> NDArray[np.uint8]:
        halves = np.frombuffer(self._identities, "<u8").reshape(-1, 2)
        # Equal ones stay in their order.
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        ordered = halves[order]
        copies = np.full(len(halves), Copy.NONE, np.uint8)
        copies[order[1:][(ordered[1:] == ordered[:-1]).all(axis=1)]] = Copy.EXACT
        return copies
