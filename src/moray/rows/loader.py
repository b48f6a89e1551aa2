"""Load a worker's rows of each step from memory, or stream the same rows with Ray Data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.rows.order import Drawn, Group, Order
from moray.rows.store import Record, Rows, StoredRows
from moray.rows.windows import WindowReader


@dataclass(frozen=True)
class Shard:
    """A worker's share of the rows of a range of steps.

    Attributes:
        first_step: first step, counted from 0.
        num_steps: end of the range (exclusive).
        rank: the worker's rank.
        world_size: number of workers.
    """

    first_step: int
    num_steps: int
    rank: int
    world_size: int


def from_memory(split: StoredRows, order: Order, shard: Shard) -> Iterator[Rows]:
    """Yield a worker's rows of each step, shape (global_batch_size / world_size,)."""
    for step in range(shard.first_step, shard.num_steps):
        yield split.rows[np.split(order.rows(step), shard.world_size)[shard.rank]]


def drawn(order: Order, shard: Shard) -> Iterator[Drawn]:
    """Yield where the rows of the same steps are in the order's sequence."""
    size = order.global_batch_size
    per_worker = size // shard.world_size
    for step in range(shard.first_step, shard.num_steps):
        first = step * size + shard.rank * per_worker
        yield Drawn(order.seed, np.arange(first, first + per_worker))


def from_stream(
    windows: WindowReader, record: Record, order: Order, shard: Shard
) -> Iterator[Rows]:
    """Yield the same rows as `from_memory`, read or made by Ray tasks ahead of their steps.

    A task reads a group of windows and returns those of its rows that belong to this worker. A
    resumed stream starts in the middle of a group and reads nothing before it.

    Args:
        windows: reads or makes the rows of a window, in any process.
        record: type of a row.
        order: order of the rows.
        shard: this worker's shard.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False

    size = order.global_batch_size
    groups = list(order.groups(shard.first_step * size, shard.num_steps * size))
    assert record.names
    read = _reader(groups, windows, record.names, size, shard)
    mine = ray.data.range(len(groups), override_num_blocks=len(groups)).map_batches(
        read, batch_size=1, num_cpus=1, concurrency=_TASKS
    )
    for batch in mine.iter_batches(
        batch_size=size // shard.world_size, prefetch_batches=_BATCHES_AHEAD
    ):
        rows = np.empty(len(batch[record.names[0]]), record)
        for name in record.names:
            rows[name] = batch[name]
        yield rows


# While one group is consumed, the next one is prepared.
_TASKS = 2
_BATCHES_AHEAD = 4


def _reader(
    groups: list[Group],
    windows: WindowReader,
    fields: tuple[str, ...],
    global_batch_size: int,
    shard: Shard,
) -> Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
    per_worker = global_batch_size // shard.world_size

    def read(batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        group = groups[int(batch["id"][0])]
        picked = group.picked()
        positions = group.first_position + np.arange(len(picked))
        mine = picked[positions % global_batch_size // per_worker == shard.rank]
        rows = np.concatenate([windows(window) for window in group.windows])[mine]
        # Fields of a record aren't contiguous.
        return {name: np.ascontiguousarray(rows[name]) for name in fields}

    return read
