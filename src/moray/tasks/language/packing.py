"""Which pieces share a row: best-fit decreasing bin packing."""

from bisect import bisect_left, insort
from collections.abc import Sequence


def pack(lengths: Sequence[int], block_size: int) -> list[list[int]]:
    """Pack pieces into rows, longest first, each into the fullest row that has room for it.

    Source: Johnson, "Near-optimal bin packing algorithms", 1973 (best-fit decreasing: at most
    11/9 of the optimum).

    Args:
        lengths: number of tokens in each piece, at most `block_size`.
        block_size: tokens in a row.

    Returns:
        The indices of the pieces in each row.
    """
    rows: list[list[int]] = []
    rows_with: dict[int, list[int]] = {}  # free space -> rows
    spaces: list[int] = []  # the keys of rows_with, ascending
    for piece in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[piece]
        position = bisect_left(spaces, length)
        if position == len(spaces):
            row, space = len(rows), block_size
            rows.append([])
        else:
            space = spaces[position]
            row = rows_with[space].pop()
            if not rows_with[space]:
                del rows_with[space]
                spaces.pop(position)
        rows[row].append(piece)
        left = space - length
        if left not in rows_with:
            rows_with[left] = []
            insort(spaces, left)
        rows_with[left].append(row)
    return rows
