"""Rows of pairs, in the format that is stored on disk.

A row is a record of tokens and flags as of a language model's rows, with each pair's rejected piece
right behind its chosen one. Where documents can share rows, pairs are packed. Otherwise a row has
one pair: the chosen piece in its first half, the rejected one in its second, and `as_sequences`
gives each half a row of its own, so that no piece sees another.

The rows that are trained on also have the field `reference`, see `with_reference`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.rows.store import Record, Rows
from moray.tasks.language.rows import FIRST, row_type

REJECTED = 4
"""Flag of all tokens of a rejected piece; see `tasks.language.rows` for the others."""


def num_pairs(rows: Rows) -> NDArray[np.int64]:
    """Number of pairs in each row, shape (rows,)."""
    both = FIRST | REJECTED
    numbers: NDArray[np.int64] = (rows["flags"] & both == both).sum(axis=1)
    return numbers


def has_halves(manifest: Mapping[str, Any]) -> bool:
    """Whether each half of a store's rows is a row of its own to a model; see `as_sequences`."""
    return manifest["task"] != "preference" or not manifest["recipe"]["packing"]


def in_pairs(documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of both pieces of each pair, in the order of the pairs, shape (pairs, 2).

    Args:
        documents: that of each piece, in the order of their offsets, shape (pieces,).
    """
    _, first, document = np.unique(documents, return_index=True, return_inverse=True)
    return np.argsort(first[document], kind="stable").reshape(-1, 2)


def as_sequences(rows: Rows, packing: bool) -> Rows:
    """Rows as a model sees them: packed rows as they are, else each half as a row of its own.

    Offsets into the flattened tokens stay the same.
    """
    if packing:
        return rows
    tokens, flags = rows["tokens"], rows["flags"]
    half = tokens.shape[1] // 2
    sequences = np.empty(2 * len(rows), row_type(half, tokens.dtype))
    sequences["tokens"], sequences["flags"] = tokens.reshape(-1, half), flags.reshape(-1, half)
    return sequences


def with_reference(record: Record, most_pairs: int) -> Record:
    """The fields of a record and `reference`, shape (most_pairs, 2): chosen, rejected.

    It has the log-probabilities of answers under the reference, in nats.
    """
    assert record.names
    fields = [(name, record[name].base, record[name].shape) for name in record.names]
    return np.dtype([*fields, ("reference", np.dtype("<f4"), (most_pairs, 2))])
