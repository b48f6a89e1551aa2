"""Rows of answers, in the format that is stored on disk.

A row is a record of tokens and flags as of a language model's rows. Its first half has prompts with
their answers, one behind the other, and its second half the same prompts in the same order, each
with the answer of another document, by which the KL divergence is estimated. Where documents can't
share rows, each half has one piece. A model sees each half as a row of its own.

The flags are those of pairs, see `tasks.preference.rows`, with the other document's answer as the
rejected one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moray.rows.store import Rows
from moray.tasks.language.pieces import Piece
from moray.tasks.language.rows import FIRST, PackedRows, Segment, pack, row_type
from moray.tasks.preference.rows import REJECTED

DESIRABLE = 8
"""Flag of all tokens of a piece whose answer is good; see also `tasks.language.rows`."""


class Answer(NamedTuple):
    """A prompt with its answer, the same prompt with another's, and whether the answer is good."""

    own: Piece
    other: Piece
    label: bool


def num_desirable(rows: Rows) -> NDArray[np.int64]:
    """Number of good answers in each row, shape (rows,)."""
    both = FIRST | DESIRABLE
    numbers: NDArray[np.int64] = (rows["flags"] & both == both).sum(axis=1)
    return numbers


def pack_answers(
    answers: Sequence[Answer], block_size: int, token_type: np.dtype[Any], packing: bool
) -> PackedRows:
    """Put answers into rows: packed by best fit, or a row for each of them.

    Args:
        answers: their pieces have at most half of `block_size` tokens.
        block_size: tokens in a row, an even number.
    """
    half = block_size // 2
    lengths = [max(len(one.own.tokens), len(one.other.tokens)) for one in answers]
    packed = pack(lengths, half) if packing else [[number] for number in range(len(answers))]
    rows = np.zeros(len(packed), row_type(block_size, token_type))
    tokens, flags = rows["tokens"], rows["flags"]
    segments: list[tuple[int, ...]] = []
    for row, numbers in enumerate(packed):
        for is_other in (False, True):
            end = half * is_other
            for answer in map(answers.__getitem__, numbers):
                piece = answer.other if is_other else answer.own
                start, end = end, end + len(piece.tokens)
                tokens[row, start:end] = piece.tokens
                mark = REJECTED if is_other else DESIRABLE * answer.label
                flags[row, start:end] = piece.mask | np.uint8(mark)
                flags[row, start] |= FIRST
                place = row * block_size + start
                segments.append((place, len(piece.tokens), piece.document, piece.bytes))
            # As in rows of a language model.
            if packing and end % half:
                flags[row, end] = FIRST
    return PackedRows(rows, np.array(segments, np.int64).reshape(len(segments), len(Segment)))
