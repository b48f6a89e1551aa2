"""Prepares the batches of the loop one step ahead."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from moray.rows.store import Rows
from moray.tasks.interface import Batch, Task

Item = TypeVar("Item")


@dataclass(frozen=True)
class Feed:
    """A worker's part of a step.

    Attributes:
        batches: its micro-batches, all of the same size.
        weight: what the loss of their rows is averaged over, see `Task.weight`.
    """

    batches: list[Batch]
    weight: int


def feeds(task: Task, rows: Iterator[Rows], micro_batch_size: int) -> Iterator[Feed]:
    """A worker's part of each step; the next one is prepared while the current one is used."""
    parts = (Feed(micro_batches(task, mine, micro_batch_size), task.weight(mine)) for mine in rows)
    return _ahead(parts)


def micro_batches(task: Task, rows: Rows, size: int, count: int | None = None) -> list[Batch]:
    """Rows in batches of the same size, so that code compiled for that size works for all.

    Args:
        task: makes the batches.
        rows: shape (rows,).
        size: maximum rows in a batch.
        count: minimum number of batches; workers that shard a model need the same number.
    """
    count = max(count or 1, -(-len(rows) // size))
    # A worker may have none.
    size = max(1, -(-len(rows) // count))
    padded = np.concatenate([rows, np.zeros(count * size - len(rows), rows.dtype)])
    return [task.batch(padded[start : start + size]) for start in range(0, len(padded), size)]


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
