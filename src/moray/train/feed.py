"""Batches for the loop, made one step ahead of it."""

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
        batches: its micro-batches, all of one size.
        trained: tokens that are trained in them.
    """

    batches: list[Batch]
    trained: int


def feeds(rows: Iterator[Rows], micro_batch_size: int) -> Iterator[Feed]:
    """A worker's part of each step, the next one made while one is used."""
    parts = (Feed(micro_batches(mine, micro_batch_size), num_trained(mine)) for mine in rows)
    return _ahead(parts)


def micro_batches(rows: Rows, size: int, count: int | None = None) -> list[Batch]:
    """Rows in batches of one size, so that code that is compiled for a size serves all.

    Args:
        rows: shape (rows,).
        size: rows in a batch, at most.
        count: batches, at least; workers that shard a model must make the same number.
    """
    count = max(count or 1, -(-len(rows) // size))
    # A worker may have none.
    size = max(1, -(-len(rows) // count))
    # Of zeros: without documents, and without anything that is trained.
    padded = np.concatenate([rows, np.zeros(count * size - len(rows), rows.dtype)])
    return [make_batch(padded[start : start + size]) for start in range(0, len(padded), size)]


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
