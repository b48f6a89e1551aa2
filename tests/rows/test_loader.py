"""Rows from memory and rows streamed by a real Ray Data are the same, whatever they are made of."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from many_windows import write_many_windows
from object_store import object_store

from moray.config.schema import Data, result_keys
from moray.provenance.manifest import read_manifest
from moray.rows.loader import Shard, drawn, from_memory, from_stream
from moray.rows.order import Order
from moray.rows.remote import copy_to
from moray.rows.store import Rows, record_of
from moray.stages.tokenize import tokenize
from moray.tasks.language.store import StoredSplit
from moray.tasks.language.windows import window_reader

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


def order_of(store: Path) -> Order:
    return Order(StoredSplit(store, "train").windows, GLOBAL_BATCH_SIZE, seed=3)


def stream(store: Path, rows_url: str, order: Order, shard: Shard) -> Iterator[Rows]:
    record = record_of(read_manifest(store))
    return from_stream(window_reader(store, rows_url), record, order, shard)


def same(ours: Iterator[Rows], theirs: Iterator[Rows]) -> int:
    """How many steps there are, all of them with equal rows."""
    steps = 0
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)
        steps += 1
    return steps


def test_workers_share_the_rows_of_a_step_in_the_order_of_their_ranks(
    stores: dict[str, Path],
) -> None:
    split, order = StoredSplit(stores["ahead"], "train"), order_of(stores["ahead"])
    parts = [list(from_memory(split, order, Shard(4, 9, rank, 3))) for rank in range(3)]
    for number, step in enumerate(range(4, 9)):
        whole = np.concatenate([part[number] for part in parts])
        np.testing.assert_array_equal(whole, split.rows[order.rows(step)])


@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize("when", ["ahead", "on-the-fly"])
@pytest.mark.parametrize(("rank", "first_step"), [(0, 0), (1, 7)])
def test_a_stream_has_the_rows_that_memory_has_over_several_epochs(
    when: str, rank: int, first_step: int, stores: dict[str, Path]
) -> None:
    ahead = stores["ahead"]
    order = order_of(ahead)
    assert len(StoredSplit(ahead, "train").windows) > 10
    shard = Shard(first_step, order.num_steps(2.5), rank, world_size=2)
    streamed = stream(stores[when], str(stores[when]), order, shard)
    steps = same(streamed, from_memory(StoredSplit(ahead, "train"), order, shard))
    assert steps == order.num_steps(2.5) - first_step


@pytest.mark.usefixtures("_ray")
def test_a_stream_from_an_object_store_has_the_rows_that_memory_has(
    stores: dict[str, Path], bucket: str
) -> None:
    ahead = stores["ahead"]
    order = order_of(ahead)
    shard = Shard(0, order.num_steps(1), 0, 1)
    streamed = stream(ahead, copy_to(ahead, bucket), order, shard)
    assert same(streamed, from_memory(StoredSplit(ahead, "train"), order, shard)) > 10


def test_where_rows_are_drawn_is_their_place_in_the_orders_sequence(
    stores: dict[str, Path],
) -> None:
    store = stores["ahead"]
    order, split = order_of(store), StoredSplit(store, "train")
    sequence = np.concatenate([order.rows(step) for step in range(7)])
    for rank in range(3):
        shard = Shard(first_step=2, num_steps=7, rank=rank, world_size=3)
        pairs = zip(from_memory(split, order, shard), drawn(order, shard), strict=True)
        for rows, where in pairs:
            assert where.seed == order.seed
            assert np.array_equal(split.rows[sequence[where.positions]], rows)
