"""Load a worker's rows of each step from memory, or stream the same rows with Ray."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from numpy.typing import NDArray

from moray.provenance.manifest import read_manifest
from moray.rows.order import Group, Mixture
from moray.rows.store import Record, RowPositions, Rows, StoredRows, WindowReader, record_of


@dataclass(frozen=True)
class Shard:
    """A worker's share of the rows of a range of steps.

    Attributes:
        first_step: first step, counted from 0.
        num_steps: end of the range (exclusive).
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


def row_positions(mixture: Mixture, shard: Shard) -> Iterator[RowPositions]:
    """Yield the positions of the rows of the same steps in the mixture's sequence."""
    size = mixture.global_batch_size
    mine = np.array_split(np.arange(size), shard.world_size)[shard.rank]
    for step in range(shard.first_step, shard.num_steps):
        yield RowPositions(mixture.seed, step * size + mine)


def from_stream(
    readers: Sequence[WindowReader], record: Record, mixture: Mixture, shard: Shard, name: str
) -> Iterator[Rows]:
    """Yield the same rows as `from_memory`, read or made by Ray tasks ahead of their steps.

    Args:
        readers: for each store, reads or makes the rows of a window, in any process.
        name: of the stream that the workers share; of their attempt alone.
    """
    streams = [
        _Stream(_parts(store, reader, mixture, shard, f"{name}-{store}"), record)
        for store, reader in enumerate(readers)
    ]
    for step in range(shard.first_step, shard.num_steps):
        stores = np.array_split(mixture.stores(step), shard.world_size)[shard.rank]
        rows = np.empty(len(stores), record)
        for store, stream in enumerate(streams):
            mine = stores == store
            rows[mine] = stream.take(int(mine.sum()))
        yield rows


def stored_windows(store: Path, rows_url: str) -> WindowReader:
    """A function that reads a window's rows, and nothing else, from a store's file or a copy."""
    manifest = read_manifest(store)
    record, sizes = record_of(manifest), manifest["splits"]["train"]["windows"]
    ends = np.cumsum(sizes)
    url = f"{rows_url}/train.rows"

    def read(window: int) -> Rows:
        end = int(ends[window]) * record.itemsize
        start = end - int(sizes[window]) * record.itemsize
        files, path = fsspec.core.url_to_fs(url)
        return np.frombuffer(files.cat_file(path, start=start, end=end), record)

    return read


class _Stream:
    """Rows that come in parts of any size and are taken in others."""

    def __init__(self, parts: Iterator[Rows], record: Record) -> None:
        self._parts = parts
        self._waiting: Rows = np.empty(0, record)

    def take(self, count: int) -> Rows:
        while len(self._waiting) < count:
            self._waiting = np.concatenate([self._waiting, next(self._parts)])
        rows, self._waiting = self._waiting[:count], self._waiting[count:]
        return rows


def _parts(
    store: int, reader: WindowReader, mixture: Mixture, shard: Shard, name: str
) -> Iterator[Rows]:
    """Yield this worker's rows of a store in their order, group by group.

    A resumed stream starts in the middle of a group and reads nothing before it.
    """
    import ray

    low, high = mixture.counts(shard.first_step)[store], mixture.counts(shard.num_steps)[store]
    groups = list(mixture.orders[store].groups(low, high))
    if not groups:
        return
    positions = partial(mixture.interleaving.positions, store)
    read = _group_reader(groups, reader, positions, mixture.global_batch_size, shard.world_size)
    # The first worker that comes here creates it.
    shared = (
        ray.remote(_SharedReader)
        .options(name=name, get_if_exists=True, num_cpus=0)
        .remote(read, len(groups), shard.world_size)
    )
    requests = (shared.part.remote(number, shard.rank) for number in range(len(groups)))
    references = (ray.get(part)[0] for part in requests)
    current = next(references)
    for following in chain(references, [None]):
        if following is not None:
            # Ray fetches it meanwhile.
            ray.wait([following], timeout=0)
        yield ray.get(current)
        current = following


class _SharedReader:
    """An actor that has each group read once for all workers, and hands out their parts."""

    def __init__(self, read: Callable[[int], list[Rows]], num_groups: int, world_size: int) -> None:
        import ray

        self._read = ray.put(read)
        self._num_groups = num_groups
        self._world_size = world_size
        self._task = ray.remote(num_cpus=1, num_returns=world_size)(_parts_of_group)
        # By group: references to the parts that their workers haven't asked for.
        self._parts: dict[int, dict[int, Any]] = {}

    def part(self, number: int, rank: int) -> list[Any]:
        """A reference to a worker's part of a group, in a list, so that Ray doesn't resolve it."""
        # Enough for a group to be read for each worker at once.
        end = min(number + 1 + self._world_size, self._num_groups)
        for ahead in range(number, end):
            if ahead not in self._parts:
                references = self._task.remote(self._read, ahead)
                parts = references if self._world_size > 1 else [references]
                self._parts[ahead] = dict(enumerate(parts))
        return [self._parts[number].pop(rank)]


def _parts_of_group(read: Callable[[int], list[Rows]], number: int) -> Any:
    parts = read(number)
    # Ray expects as many results as parts.
    return parts if len(parts) > 1 else parts[0]


def _group_reader(
    groups: list[Group],
    reader: WindowReader,
    positions_of: Callable[[int, int], NDArray[np.int64]],
    global_batch_size: int,
    world_size: int,
) -> Callable[[int], list[Rows]]:
    """A function that reads a group's windows and returns each worker's rows of it."""
    places = np.array_split(np.arange(global_batch_size), world_size)

    def read(number: int) -> list[Rows]:
        group = groups[number]
        indices, first = group.indices(), group.first_position
        within = positions_of(first, first + len(indices)) % global_batch_size
        rows = np.concatenate([reader(window) for window in group.windows])
        return [rows[indices[np.isin(within, mine)]] for mine in places]

    return read
