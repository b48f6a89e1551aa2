"""Prepares the batches of the loop one step ahead."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from moray.tokens.batch import Batch, make_batch, num_trained
from moray.tokens.rows import Rows

Item = TypeVar("Item")


@dataclass(frozen=True)
class Feed:
    """A worker's part of a step.

    Attributes:
        batches: its micro-batches, all of the same size.
        trained: number of trained tokens in them.
    """

    batches: list[Batch]
    trained: int


def feeds(rows: Iterator[Rows], micro_batch_size: int) -> Iterator[Feed]:
    """A worker's part of each step; the next one is prepared while the current one is used."""
    parts = (Feed(micro_batches(mine, micro_batch_size), num_trained(mine)) for mine in rows)
    return _ahead(parts)


def micro_batches(rows: Rows, size: int, count: int | None = None) -> list[Batch]:
    """Rows in batches of the same size, so that code compiled for that size works for all.

    Args:
        rows: shape (rows,).
        size: maximum rows in a batch.
        count: minimum number of batches; workers that shard a model need the same number.
    """
    count = max(count or 1, -(-len(rows) // size))
    # A worker may have none.
    size = max(1, -(-len(rows) // count))
    # Rows of zeros contain no documents and no trained tokens.
    padded = np.concatenate([rows, np.zeros(count * size - len(rows), rows.dtype)])
    return [make_batch(padded[start : start + size]) for start in range(0, len(padded), size)]


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
