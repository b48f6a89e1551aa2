"""Rows: one or more pieces of documents, in the format that is stored on disk.

A row is a record of `block_size` tokens and `block_size` flags, so that one read fetches both. The
flags mark the trained tokens and the first token of each piece. The rest of a row is padding,
whose first token is marked too in packed rows.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.rows.store import Record, Rows
from moray.tasks.language.encode import Piece
from moray.tasks.language.packing import pack

TRAINED = 1
FIRST = 2


class Segment(IntEnum):
    """Columns of a segments array: a piece's offset in the flattened rows, its number of tokens,
    the number of its document, and the UTF-8 bytes that its trained tokens cover.
    """

    START = 0
    LENGTH = 1
    DOCUMENT = 2
    BYTES = 3


@dataclass(frozen=True)
class Packed:
    """Pieces packed into rows.

    Attributes:
        rows: shape (rows,).
        segments: shape (pieces, 4), columns as in `Segment`; sorted by offset.
        dropped: number of documents dropped as too long.
    """

    rows: Rows
    segments: NDArray[np.int64]
    dropped: int = 0


def row_type(block_size: int, token_type: np.dtype[Any]) -> Record:
    """The NumPy type of a row, with the fields `tokens` and `flags`."""
    return np.dtype([("tokens", token_type, (block_size,)), ("flags", "u1", (block_size,))])


def pack_rows(
    pieces: list[Piece], block_size: int, token_type: np.dtype[Any], packing: bool = True
) -> Packed:
    """Put pieces into rows: packed by best fit, or one row for each piece.

    Args:
        pieces: pieces of at most `block_size` tokens.
        block_size: tokens in a row.
        token_type: type of a token id.
        packing: whether pieces share rows.
    """
    lengths = [len(piece.tokens) for piece in pieces]
    packed = pack(lengths, block_size) if packing else [[number] for number in range(len(pieces))]
    rows = np.zeros(len(packed), row_type(block_size, token_type))
    tokens, flags = rows["tokens"], rows["flags"]
    segments = np.empty((len(pieces), len(Segment)), np.int64)
    number = 0
    for row, members in enumerate(packed):
        column = 0
        for piece in (pieces[member] for member in members):
            end = column + len(piece.tokens)
            tokens[row, column:end] = piece.tokens
            flags[row, column:end] = piece.mask
            flags[row, column] |= FIRST
            start = row * block_size + column
            segments[number] = (start, len(piece.tokens), piece.document, piece.bytes)
            number += 1
            column = end
        # Without packing, positions continue through the padding, as the model's defaults would.
        if packing and column < block_size:
            flags[row, column] = FIRST
    return Packed(rows, segments)


def is_trained(rows: Rows) -> NDArray[np.bool_]:
    """Whether each token is trained, shape (rows, block_size)."""
    return (rows["flags"] & TRAINED).astype(np.bool_)
