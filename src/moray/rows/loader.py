"""Load a worker's rows of each step from memory, or stream the same rows with Ray Data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.rows.mixture import Mixture
from moray.rows.order import Drawn, Group
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


def from_memory(splits: Sequence[StoredRows], mixture: Mixture, shard: Shard) -> Iterator[Rows]:
    """Yield a worker's rows of each step.

    If the number of workers doesn't divide them evenly, the first workers have one more.
    """
    for step in range(shard.first_step, shard.num_steps):
        stores, numbers = (
            np.array_split(whole, shard.world_size)[shard.rank] for whole in mixture.rows(step)
        )
        rows = np.empty(len(numbers), splits[0].rows.dtype)
        for store, split in enumerate(splits):
            mine = stores == store
            rows[mine] = split.rows[numbers[mine]]
        yield rows


def drawn(mixture: Mixture, shard: Shard) -> Iterator[Drawn]:
    """Yield where the rows of the same steps are in the mixture's sequence."""
    size = mixture.global_batch_size
    mine = np.array_split(np.arange(size), shard.world_size)[shard.rank]
    for step in range(shard.first_step, shard.num_steps):
        yield Drawn(mixture.seed, step * size + mine)


def from_stream(
    readers: Sequence[WindowReader], record: Record, mixture: Mixture, shard: Shard
) -> Iterator[Rows]:
    """Yield the same rows as `from_memory`, read or made by Ray tasks ahead of their steps.

    Args:
        readers: for each store, reads or makes the rows of a window, in any process.
        record: type of a row.
        mixture: which rows make up a step.
        shard: this worker's shard.
    """
    streams = [
        _Stream(_batches(store, reader, record, mixture, shard), record)
        for store, reader in enumerate(readers)
    ]
    for step in range(shard.first_step, shard.num_steps):
        stores = np.array_split(mixture.stores(step), shard.world_size)[shard.rank]
        rows = np.empty(len(stores), record)
        for store, stream in enumerate(streams):
            mine = stores == store
            rows[mine] = stream.take(int(mine.sum()))
        yield rows


class _Stream:
    """Rows that come in batches of any size and are taken in others."""

    def __init__(self, batches: Iterator[Rows], record: Record) -> None:
        self._batches = batches
        self._waiting: Rows = np.empty(0, record)

    def take(self, count: int) -> Rows:
        while len(self._waiting) < count:
            self._waiting = np.concatenate([self._waiting, next(self._batches)])
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


def _batches(
    store: int, reader: WindowReader, record: Record, mixture: Mixture, shard: Shard
) -> Iterator[Rows]:
    """Yield this worker's rows of a store in their order.

    A task reads a group of windows and returns those of its rows that belong to this worker. A
    resumed stream starts in the middle of a group and reads nothing before it.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False

    low, high = mixture.counts(shard.first_step)[store], mixture.counts(shard.num_steps)[store]
    groups = list(mixture.orders[store].groups(low, high))
    if not groups:
        return
    assert record.names
    size = mixture.global_batch_size
    positions = partial(mixture.interleaving.positions, store)
    read = _group_reader(groups, reader, record.names, positions, size, shard)
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


def _group_reader(
    groups: list[Group],
    reader: WindowReader,
    fields: tuple[str, ...],
    positions_of: Callable[[int, int], NDArray[np.int64]],
    global_batch_size: int,
    shard: Shard,
) -> Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
    places = np.array_split(np.arange(global_batch_size), shard.world_size)[shard.rank]

    def read(batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        group = groups[int(batch["id"][0])]
        picked = group.picked()
        first = group.first_position
        positions = positions_of(first, first + len(picked))
        mine = picked[np.isin(positions % global_batch_size, places)]
        rows = np.concatenate([reader(window) for window in group.windows])[mine]
        # Fields of a record aren't contiguous.
        return {name: np.ascontiguousarray(rows[name]) for name in fields}

    return read
