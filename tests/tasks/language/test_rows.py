"""Pieces packed into rows."""

import math
import random
from itertools import chain, product

import numpy as np
import pytest
from packed import pieces_of

from moray.tasks.language.pieces import Piece
from moray.tasks.language.rows import FIRST, TRAINED, Segment, pack, pack_rows, row_type

SHORT, LONG = np.dtype("<u2"), np.dtype("<u4")


def draw_pieces(count: int, block_size: int, vocabulary: int) -> list[Piece]:
    random = np.random.default_rng(0)
    pieces = []
    for number in range(count):
        length = int(random.integers(2, block_size + 1))
        mask = random.random(length) < 0.5
        mask[0] = False
        tokens = random.integers(vocabulary, size=length)
        pieces.append(Piece(tokens, mask, number // 3, int(random.integers(500))))
    return pieces


def as_text(piece: Piece) -> str:
    return repr((piece.document, piece.bytes, piece.tokens.tolist(), piece.mask.tolist()))


@pytest.mark.parametrize(
    ("count", "block_size", "vocabulary"),
    [(0, 8, 300), (1, 8, 300), (50, 16, 2**16), (50, 16, 2**32), (3_000, 8, 300)],
)
def test_pieces_come_out_as_they_went_in(count: int, block_size: int, vocabulary: int) -> None:
    pieces = draw_pieces(count, block_size, vocabulary)
    packed = pack_rows(pieces, block_size, LONG if vocabulary > 2**16 else SHORT)
    found = [piece for row in range(len(packed.rows)) for piece in pieces_of(packed, row)]
    assert sorted(map(as_text, found)) == sorted(map(as_text, pieces))
    assert len(packed.segments) == count
    assert len(packed.rows) == len(pack([len(piece.tokens) for piece in pieces], block_size))


def test_rows_spelt_out() -> None:
    masks = [[False, True, True], [False, False], [False, *[True] * 7]]
    tokens = [[10, 11, 12], [20, 21], [*range(30, 38)]]
    pieces = [
        Piece(np.array(t), np.array(m), number, 5)
        for number, (t, m) in enumerate(zip(tokens, masks, strict=True), 40)
    ]
    packed = pack_rows(pieces, 8, SHORT)
    assert packed.rows["tokens"].tolist() == [[*range(30, 38)], [10, 11, 12, 20, 21, 0, 0, 0]]
    assert packed.rows["flags"].tolist() == [
        [FIRST, *[TRAINED] * 7],
        [FIRST, TRAINED, TRAINED, FIRST, 0, FIRST, 0, 0],
    ]
    assert packed.segments.tolist() == [[0, 8, 42, 5], [8, 3, 40, 5], [11, 2, 41, 5]]
    assert packed.segments[:, Segment.DOCUMENT].tolist() == [42, 40, 41]


def test_the_first_token_of_each_piece_and_of_padding_is_known() -> None:
    packed = pack_rows(draw_pieces(200, 16, 300), 16, SHORT)
    for row, flags in enumerate(packed.rows["flags"]):
        lengths = [len(piece.tokens) for piece in pieces_of(packed, row)]
        starts = np.cumsum([0, *lengths])
        assert np.flatnonzero(flags & FIRST).tolist() == [s for s in starts.tolist() if s < 16]
        assert not (flags[sum(lengths) :] & TRAINED).any(), "padding is not trained"


@pytest.mark.parametrize(("token_type", "size"), [(SHORT, 3), (LONG, 5)])
def test_a_row_takes_the_bytes_of_its_tokens_and_one_more_for_each(
    token_type: np.dtype[np.uint16], size: int
) -> None:
    assert row_type(16, token_type).itemsize == 16 * size


def draw(seed: int, count: int, block_size: int) -> list[int]:
    return [random.Random(seed * 1000 + i).randint(1, block_size) for i in range(count)]


def fewest(lengths: list[int], block_size: int) -> int:
    """The fewest rows that any packing needs, by trying them all."""

    def place(remaining: list[int], spaces: list[int], best: int) -> int:
        if len(spaces) >= best:
            return best
        if not remaining:
            return len(spaces)
        for row in range(len(spaces)):
            if remaining[0] <= spaces[row]:
                fuller = [*spaces[:row], spaces[row] - remaining[0], *spaces[row + 1 :]]
                best = place(remaining[1:], fuller, best)
        return place(remaining[1:], [*spaces, block_size - remaining[0]], best)

    return place(sorted(lengths, reverse=True), [], len(lengths) + 1)


def first_fit(lengths: list[int], block_size: int) -> int:
    spaces: list[int] = []
    for length in lengths:
        fits = [row for row, space in enumerate(spaces) if space >= length]
        if fits:
            spaces[fits[0]] -= length
        else:
            spaces.append(block_size - length)
    return len(spaces)


def best_fit_decreasing(lengths: list[int], block_size: int) -> list[int]:
    """Fills of the rows, by looking at each row for each piece."""
    fills: list[int] = []
    for length in sorted(lengths, reverse=True):
        fits = [row for row, fill in enumerate(fills) if fill + length <= block_size]
        if fits:
            fills[max(fits, key=lambda row: fills[row])] += length
        else:
            fills.append(length)
    return sorted(fills)


def test_every_piece_is_in_one_row_and_no_row_is_overfull() -> None:
    for seed, block_size in product(range(5), (1, 10, 256)):
        lengths = draw(seed, 500, block_size)
        rows = pack(lengths, block_size)
        assert sorted(chain(*rows)) == list(range(500)), (seed, block_size)
        fills = [sum(lengths[piece] for piece in row) for row in rows]
        assert all(0 < fill <= block_size for fill in fills), (seed, block_size)


def test_rows_are_close_to_the_fewest_possible() -> None:
    for seed in range(60):
        lengths = draw(seed, 8, 20)
        best = fewest(lengths, 20)
        assert best <= len(pack(lengths, 20)) <= math.floor(11 / 9 * best + 1), seed


def test_a_piece_goes_into_the_fullest_row_that_has_room() -> None:
    for seed in range(5):
        lengths = draw(seed, 300, 64)
        rows = pack(lengths, 64)
        fills = sorted(sum(lengths[piece] for piece in row) for row in rows)
        assert fills == best_fit_decreasing(lengths, 64), seed
        assert len(rows) < first_fit(lengths, 64), seed


def test_known_cases() -> None:
    cases = [
        ([], 0),
        ([10], 1),
        ([10, 10, 10], 3),
        ([3, 5, 2, 5, 2, 3], 2),
        ([1] * 25, 3),
        ([6, 4, 7, 3, 9, 1], 3),
    ]
    for lengths, rows in cases:
        assert len(pack(lengths, 10)) == rows, lengths
