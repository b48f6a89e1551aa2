"""Rows from memory and rows streamed by a real Ray are the same, whatever they are made of."""

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from object_store import object_store
from small_model import write_many_windows

from moray.config.schema.base import result_keys
from moray.config.schema.losses import Preference
from moray.config.schema.sections import Data
from moray.provenance.manifest import read_manifest
from moray.rows.loader import Shard, from_memory, from_stream, row_positions
from moray.rows.order import Mixture
from moray.rows.store import Rows, StoredRows, record_of
from moray.storage.transfer import copy_to
from moray.tasks.language.rows import StoredSplit
from moray.tasks.language.tokenize import tokenize
from moray.train.task import task_of

GLOBAL_BATCH_SIZE = 12


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> dict[str, Path]:
    """The same dataset tokenised ahead and to be tokenised on the fly, in some 20 windows."""
    folder = tmp_path_factory.mktemp("stores")
    write_many_windows(folder / "dataset")
    made = {}
    for when in ("ahead", "on-the-fly"):
        made[when] = folder / when
        data = Data.model_validate({"block_size": 64, "tokenize": when, "loader": "stream"})
        cfg = {"format": "prompt-completion", **result_keys(data)}
        tokenize(folder / "dataset", model_folder, made[when], cfg)
    return made


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture(scope="module")
def _ray(bucket: str) -> Iterator[None]:
    """Started after the object store: Ray's processes find it by the environment."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def mixture_of(*stores: Path) -> Mixture:
    windows = [StoredSplit(store, "train").windows for store in stores]
    return Mixture(windows, [0.7, 0.3][: len(stores)], GLOBAL_BATCH_SIZE, seed=3)


def stream(stores: list[Path], urls: list[str], mixture: Mixture, shard: Shard) -> Iterator[Rows]:
    record = record_of(read_manifest(stores[0]))
    readers = [
        task_of(store, {}).window_reader(store, url)
        for store, url in zip(stores, urls, strict=True)
    ]
    return from_stream(readers, record, mixture, shard, uuid.uuid4().hex)


def same(ours: Iterator[Rows], theirs: Iterator[Rows]) -> int:
    """How many steps there are, all of them with equal rows."""
    steps = 0
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)
        steps += 1
    return steps


@pytest.mark.parametrize("workers", [3, 5])
def test_workers_share_the_rows_of_a_step_in_the_order_of_their_ranks(
    workers: int, stores: dict[str, Path]
) -> None:
    split, mixture = StoredSplit(stores["ahead"], "train"), mixture_of(stores["ahead"])
    parts = [
        list(from_memory([split], mixture, Shard(4, 9, rank, workers))) for rank in range(workers)
    ]
    for number, step in enumerate(range(4, 9)):
        whole = np.concatenate([part[number] for part in parts])
        np.testing.assert_array_equal(whole, split.rows[mixture.rows(step)[1]])


@pytest.mark.long
@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize(
    ("when", "rank", "workers", "first_step"),
    [
        pytest.param("ahead", 0, 2, 0, marks=pytest.mark.release),
        ("ahead", 1, 2, 7),
        # Five workers have three or two of twelve rows.
        pytest.param("on-the-fly", 2, 5, 0, marks=pytest.mark.release),
    ],
)
def test_a_stream_has_the_rows_that_memory_has_over_several_epochs(
    when: str, rank: int, workers: int, first_step: int, stores: dict[str, Path]
) -> None:
    ahead = stores["ahead"]
    mixture = mixture_of(ahead)
    assert len(StoredSplit(ahead, "train").windows) > 10
    shard = Shard(first_step, mixture.num_steps(2.5), rank, workers)
    streamed = stream([stores[when]], [str(stores[when])], mixture, shard)
    steps = same(streamed, from_memory([StoredSplit(ahead, "train")], mixture, shard))
    assert steps == mixture.num_steps(2.5) - first_step


@pytest.mark.long
@pytest.mark.usefixtures("_ray")
def test_a_stream_from_an_object_store_has_the_rows_that_memory_has(
    stores: dict[str, Path], bucket: str
) -> None:
    ahead = stores["ahead"]
    mixture = mixture_of(ahead)
    shard = Shard(0, mixture.num_steps(1), 0, 1)
    streamed = stream([ahead], [copy_to(ahead, bucket)], mixture, shard)
    assert same(streamed, from_memory([StoredSplit(ahead, "train")], mixture, shard)) > 10


@pytest.mark.long
@pytest.mark.usefixtures("_ray")
def test_workers_share_a_stream_that_reads_each_window_once(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    store = stores["ahead"]
    mixture, windows = mixture_of(store), task_of(store, {}).window_reader(store, str(store))

    def counted(window: int) -> Rows:
        (tmp_path / f"{window}-{uuid.uuid4().hex}").touch()
        return windows(window)

    record, steps = record_of(read_manifest(store)), mixture.num_steps(1)
    shards = [Shard(0, steps, rank, world_size=3) for rank in range(3)]
    streams = [from_stream([counted], record, mixture, shard, "shared") for shard in shards]
    whole = [np.concatenate(parts) for parts in zip(*streams, strict=True)]
    expected = from_memory([StoredSplit(store, "train")], mixture, Shard(0, steps, 0, 1))
    assert same(iter(whole), expected) == steps
    # The last step has rows of the next epoch.
    read = Counter(int(path.name.partition("-")[0]) for path in tmp_path.iterdir())
    num_windows = len(StoredSplit(store, "train").windows)
    assert num_windows <= read.total() <= num_windows + 8


@pytest.mark.release
@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize(("rank", "first_step"), [(0, 0), (1, 5)])
def test_a_stream_of_two_stores_has_the_rows_that_memory_has(
    rank: int, first_step: int, stores: dict[str, Path]
) -> None:
    both = [stores["ahead"], stores["on-the-fly"]]
    mixture = mixture_of(stores["ahead"], stores["ahead"])
    shard = Shard(first_step, 25, rank, world_size=2)
    splits = [StoredSplit(stores["ahead"], "train")] * 2
    streamed = stream(both, [str(store) for store in both], mixture, shard)
    assert same(streamed, from_memory(splits, mixture, shard)) == 25 - first_step


@pytest.mark.long
@pytest.mark.usefixtures("_ray")
def test_rows_of_pairs_are_streamed_with_their_reference(preferences: Path, bucket: str) -> None:
    store = preferences / "reference"
    task = task_of(store, {"preference": result_keys(Preference())})
    split = StoredRows(store, "train")
    mixture = Mixture([split.windows], [1.0], GLOBAL_BATCH_SIZE, seed=3)
    shard = Shard(0, mixture.num_steps(2), 1, world_size=2)
    for rows_url in (str(store), copy_to(store, bucket)):
        windows = task.window_reader(store, rows_url)
        streamed = from_stream([windows], task.record, mixture, shard, uuid.uuid4().hex)
        assert same(streamed, from_memory([split], mixture, shard)) > 5


def test_where_rows_are_drawn_is_their_place_in_the_sequence(stores: dict[str, Path]) -> None:
    store = stores["ahead"]
    mixture, split = mixture_of(store), StoredSplit(store, "train")
    sequence = np.concatenate([mixture.rows(step)[1] for step in range(7)])
    for rank in range(5):
        shard = Shard(first_step=2, num_steps=7, rank=rank, world_size=5)
        pairs = zip(
            from_memory([split], mixture, shard), row_positions(mixture, shard), strict=True
        )
        for rows, where in pairs:
            assert where.seed == mixture.seed
            assert np.array_equal(split.rows[sequence[where.positions]], rows)
