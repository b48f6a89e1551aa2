"""Which pieces share a row."""

import math
import random
from itertools import chain, product

from moray.tasks.language.rows import pack


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


def test_packing_is_deterministic() -> None:
    lengths = [3] * 50 + [5] * 50 + [7] * 50
    assert pack(lengths, 16) == pack(list(lengths), 16)
