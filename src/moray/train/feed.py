"""Prepares the batches of the loop one step ahead."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from moray.rows.order import Drawn
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


def feeds(
    task: Task,
    rows: Iterator[Rows],
    drawn: Iterator[Drawn],
    micro_batch_size: int,
    count: int | None = None,
) -> Iterator[Feed]:
    """A worker's part of each step; the next one is prepared while the current one is used.

    Args:
        task: makes the batches.
        rows: the worker's rows of each step.
        drawn: where in the order's sequence they are.
        micro_batch_size: maximum rows in a batch.
        count: minimum number of batches in a step, see `micro_batches`.
    """
    parts = (
        Feed(micro_batches(task, mine, micro_batch_size, count, where), task.weight(mine))
        for mine, where in zip(rows, drawn, strict=False)
    )
    return _ahead(parts)


def micro_batches(
    task: Task, rows: Rows, size: int, count: int | None = None, drawn: Drawn | None = None
) -> list[Batch]:
    """Rows in batches of the same size, so that code compiled for that size works for all.

    Args:
        task: makes the batches.
        rows: shape (rows,).
        size: maximum rows in a batch.
        count: minimum number of batches; workers that shard a model need the same number.
        drawn: where in the order's sequence the rows are; None for held-out rows.
    """
    count = max(count or 1, -(-len(rows) // size))
    # A worker may have none.
    size = max(1, -(-len(rows) // count))
    missing = count * size - len(rows)
    padded = np.concatenate([rows, np.zeros(missing, rows.dtype)])
    parts: list[Drawn | None] = [None] * count
    if drawn is not None:
        positions = np.concatenate([drawn.positions, np.zeros(missing, np.int64)])
        parts = [Drawn(drawn.seed, part) for part in np.split(positions, count)]
    return [task.batch(one, part) for one, part in zip(np.split(padded, count), parts, strict=True)]


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
