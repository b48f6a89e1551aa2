"""Rows: pieces of documents, side by side or alone, in the form in which they lie on disk.

A row is a record of `block_size` tokens and as many flags, so that it is read in one go. Flags
say whether a token is trained, and whether it is the first of its piece; the rest of a row is
padding, which in packed rows has a first token as pieces do.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.tokens.encode import Piece
from moray.tokens.packing import pack

Rows = NDArray[np.void]
"""Records with the fields `tokens` and `flags`, shape (rows,)."""

TRAINED = 1
FIRST = 2


class Segment(IntEnum):
    """Columns of a segments array: a piece's offset in the flattened rows, its tokens, the number
    of its document, and UTF-8 bytes behind its trained tokens.
    """

    START = 0
    LENGTH = 1
    DOCUMENT = 2
    BYTES = 3


@dataclass(frozen=True)
class Packed:
    """Pieces as rows.

    Attributes:
        rows: shape (rows,).
        segments: shape (pieces, 4), by `Segment`; sorted by offset.
        dropped: documents left out for their length.
    """

    rows: Rows
    segments: NDArray[np.int64]
    dropped: int = 0


def row_type(block_size: int, token_type: np.dtype[Any]) -> np.dtype[Any]:
    """The type of a row's record."""
    return np.dtype([("tokens", token_type, (block_size,)), ("flags", "u1", (block_size,))])


def pack_rows(
    pieces: list[Piece], block_size: int, token_type: np.dtype[Any], packing: bool = True
) -> Packed:
    """Put pieces into rows: as few as best fit finds, or one for each piece.

    Args:
        pieces: of at most `block_size` tokens.
        block_size: tokens in a row.
        token_type: of a token id.
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
        # Without neighbours, positions go on through the padding, as the model's own would.
        if packing and column < block_size:
            flags[row, column] = FIRST
    return Packed(rows, segments)


def is_trained(rows: Rows) -> NDArray[np.bool_]:
    """Whether each token is trained, shape (rows, block_size)."""
    return (rows["flags"] & TRAINED).astype(np.bool_)
