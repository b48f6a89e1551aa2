"""Rows of pairs, in the format that is stored on disk.

A row is a record of tokens and flags as of a language model's rows, with each pair's rejected piece
right behind its chosen one. Where documents can share rows, pairs are packed. Otherwise a row has
one pair: the chosen piece in its first half, the rejected one in its second, and `as_sequences`
gives each half a row of its own, so that no piece sees another.

The rows that are trained on also have the field `reference`, see `with_reference`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.rows.store import Record, Rows
from moray.tasks.language.packing import pack
from moray.tasks.language.rows import FIRST, Packed, Segment, row_type
from moray.tasks.preference.encode import EncodedPairs

REJECTED = 4
"""Flag of all tokens of a rejected piece; see `tasks.language.rows` for the others."""


@dataclass(frozen=True)
class PackedPairs(Packed):
    """Pairs packed into rows; a pair's two segments follow each other.

    Attributes:
        truncated: number of pairs that were cut.
    """

    truncated: int = 0


def pack_pairs(
    encoded: EncodedPairs, block_size: int, token_type: np.dtype[Any], packing: bool
) -> PackedPairs:
    """Put pairs into rows: packed by best fit, or one row for each pair.

    Args:
        encoded: pairs whose pieces have at most half of `block_size` tokens.
        block_size: tokens in a row, an even number.
        token_type: type of a token id.
        packing: whether pairs share rows.
    """
    pairs = encoded.pairs
    lengths = [len(pair) for pair in pairs]
    packed = pack(lengths, block_size) if packing else [[number] for number in range(len(pairs))]
    rows = np.zeros(len(packed), row_type(block_size, token_type))
    segments: list[tuple[int, ...]] = []
    for row, members in enumerate(packed):
        column = 0
        for pair in (pairs[member] for member in members):
            for piece, kind in ((pair.chosen, 0), (pair.rejected, REJECTED)):
                if kind and not packing:
                    column = block_size // 2
                end = column + len(piece.tokens)
                rows["tokens"][row, column:end] = piece.tokens
                rows["flags"][row, column:end] = piece.mask
                rows["flags"][row, column:end] |= kind
                rows["flags"][row, column] |= FIRST
                start = row * block_size + column
                segments.append((start, len(piece.tokens), piece.document, piece.bytes))
                column = end
        # Without packing, positions continue through the padding, as the model's defaults would.
        if packing and column < block_size:
            rows["flags"][row, column] = FIRST
    shape = (len(segments), len(Segment))
    return PackedPairs(
        rows, np.array(segments, np.int64).reshape(shape), encoded.dropped, encoded.truncated
    )


def num_pairs(rows: Rows) -> NDArray[np.int64]:
    """Number of pairs in each row, shape (rows,)."""
    both = FIRST | REJECTED
    numbers: NDArray[np.int64] = (rows["flags"] & both == both).sum(axis=1)
    return numbers


def as_sequences(rows: Rows, packing: bool) -> Rows:
    """Rows as a model sees them: packed rows as they are, else each half as a row of its own.

    Offsets into the flattened tokens stay the same.
    """
    if packing:
        return rows
    tokens, flags = rows["tokens"], rows["flags"]
    half = tokens.shape[1] // 2
    made = np.empty(2 * len(rows), row_type(half, tokens.dtype))
    made["tokens"], made["flags"] = tokens.reshape(-1, half), flags.reshape(-1, half)
    return made


def with_reference(record: Record, most_pairs: int) -> Record:
    """The type of rows that also have the log-probabilities of their answers under the reference.

    Args:
        record: type of a row without them.
        most_pairs: maximum number of pairs in a row.

    Returns:
        The fields of the record and `reference`, in nats, shape (most_pairs, 2): chosen, rejected.
    """
    assert record.names
    fields = [(name, record[name].base, record[name].shape) for name in record.names]
    return np.dtype([*fields, ("reference", np.dtype("<f4"), (most_pairs, 2))])
