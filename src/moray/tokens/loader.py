"""Load a worker's rows of each step from memory, or stream the same rows with Ray Data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.provenance.manifest import read_manifest
from moray.tokens.order import Group, Order
from moray.tokens.rows import Rows, row_type
from moray.tokens.store import StoredSplit
from moray.tokens.windows import WindowReader, window_reader


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


def from_memory(split: StoredSplit, order: Order, shard: Shard) -> Iterator[Rows]:
    """Yield a worker's rows of each step, shape (global_batch_size / world_size,)."""
    for step in range(shard.first_step, shard.num_steps):
        yield split.rows[np.split(order.rows(step), shard.world_size)[shard.rank]]


def from_stream(store: Path, rows_url: str, order: Order, shard: Shard) -> Iterator[Rows]:
    """Yield the same rows as `from_memory`, read or tokenised by Ray tasks ahead of their steps.

    A task reads a group of windows and returns those of its rows that belong to this worker. A
    resumed stream starts in the middle of a group and reads nothing before it.

    Args:
        store: token store, for its manifest.
        rows_url: folder or URL to read the rows from.
        order: order of the rows.
        shard: this worker's shard.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False

    size = order.global_batch_size
    groups = list(order.groups(shard.first_step * size, shard.num_steps * size))
    read = _reader(groups, window_reader(store, rows_url), size, shard)
    mine = ray.data.range(len(groups), override_num_blocks=len(groups)).map_batches(
        read, batch_size=1, num_cpus=1, concurrency=_TASKS
    )
    manifest = read_manifest(store)
    record = row_type(manifest["block_size"], np.dtype(manifest["dtype"]))
    for batch in mine.iter_batches(
        batch_size=size // shard.world_size, prefetch_batches=_BATCHES_AHEAD
    ):
        rows = np.empty(len(batch["tokens"]), record)
        rows["tokens"], rows["flags"] = batch["tokens"], batch["flags"]
        yield rows


# While one group is consumed, the next one is prepared.
_TASKS = 2
_BATCHES_AHEAD = 4


def _reader(
    groups: list[Group], windows: WindowReader, global_batch_size: int, shard: Shard
) -> Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
    per_worker = global_batch_size // shard.world_size

    def read(batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        group = groups[int(batch["id"][0])]
        picked = group.picked()
        positions = group.first_position + np.arange(len(picked))
        mine = picked[positions % global_batch_size // per_worker == shard.rank]
        rows = np.concatenate([windows(window) for window in group.windows])[mine]
        # Fields of a record aren't contiguous.
        return {name: np.ascontiguousarray(rows[name]) for name in ("tokens", "flags")}

    return read
