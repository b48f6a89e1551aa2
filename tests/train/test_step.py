"""Batches of one size, made a step ahead."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from moray.model.load import load_model
from moray.provenance.manifest import read_manifest
from moray.rows.store import RowPositions, Rows
from moray.tasks.language.loss import TokenLoss, make_batch
from moray.tasks.language.rows import TRAINED, StoredSplit, num_trained, row_type
from moray.tasks.language.task import LanguageTask
from moray.train.step import feeds, micro_batches


def anywhere(rows: int) -> Iterator[RowPositions]:
    """Positions for steps of so many rows, for a task in which nothing is random."""
    while True:
        yield RowPositions(0, np.arange(rows))


@pytest.fixture
def split(small: Path) -> StoredSplit:
    return StoredSplit(small / "tokens", "train")


@pytest.fixture
def task(small: Path) -> LanguageTask:
    return LanguageTask(read_manifest(small / "tokens"), {})


@pytest.mark.parametrize(
    ("rows", "size", "count", "sizes"),
    [
        (8, 4, None, [4, 4]),
        (8, 8, None, [8]),
        (8, 100, None, [8]),
        (1, 4, None, [1]),
        # As even as can be, rather than a small one at the end.
        (9, 8, None, [5, 5]),
        (7, 3, None, [3, 3, 3]),
        (8, 3, None, [3, 3, 3]),
        # Workers with fewer rows make as many batches as the others.
        (1, 4, 3, [1, 1, 1]),
        (5, 4, 3, [2, 2, 2]),
        (8, 2, 3, [2, 2, 2, 2]),
    ],
)
def test_batches_are_of_one_size_and_hold_every_row_once(
    split: StoredSplit,
    task: LanguageTask,
    rows: int,
    size: int,
    count: int | None,
    sizes: list[int],
) -> None:
    mine = split.rows[:rows]
    batches: list[Any] = micro_batches(task, mine, size, count)
    assert [len(batch.input_ids) for batch in batches] == sizes
    tokens = torch.cat([batch.input_ids for batch in batches])
    assert tokens[:rows].tolist() == mine["tokens"].tolist()
    positions = torch.cat([batch.position_ids for batch in batches])
    assert torch.equal(positions[:rows], make_batch(mine).position_ids)
    trained = torch.cat([batch.targets for batch in batches])
    assert trained.tolist() == make_batch(mine).targets.tolist()


def test_rows_that_fill_up_change_neither_the_loss_nor_its_gradient(
    small: Path, split: StoredSplit, task: LanguageTask
) -> None:
    module = TokenLoss(load_model(small / "model"), plain_head=True)
    gradients, losses = [], []
    for size, count in ((5, 1), (3, 1), (2, 4)):
        batches = micro_batches(task, split.rows[:5], size, count)
        loss = torch.stack([module(batch) for batch in batches]).sum()
        torch.autograd.backward(loss)
        losses.append(loss)
        gradients.append([weights.grad for weights in module.parameters()])
        module.zero_grad()
    for loss, gradient in zip(losses[1:], gradients[1:], strict=True):
        torch.testing.assert_close(loss, losses[0], rtol=1e-5, atol=0)
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-4, atol=1e-3)


def test_each_step_is_fed_its_rows_and_counts_what_they_train(
    split: StoredSplit, task: LanguageTask
) -> None:
    steps = [split.rows[start : start + 3] for start in range(0, 12, 3)]
    fed = list(feeds(task, iter(steps), anywhere(3), micro_batch_size=2))
    assert len(fed) == len(steps)
    for feed, mine in zip(fed, steps, strict=True):
        batches: list[Any] = feed.batches
        assert [len(batch.input_ids) for batch in batches] == [2, 2]
        tokens = torch.cat([batch.input_ids for batch in batches])
        assert tokens[:3].tolist() == mine["tokens"].tolist()
        assert feed.weight == num_trained(mine)
        assert feed.weight == sum(len(batch.targets) for batch in batches) > 0


def test_a_worker_with_fewer_rows_is_fed_as_many_batches(
    split: StoredSplit, task: LanguageTask
) -> None:
    (feed,) = feeds(task, iter([split.rows[:2]]), anywhere(2), micro_batch_size=1, count=3)
    batches: list[Any] = feed.batches
    assert [len(batch.input_ids) for batch in batches] == [1, 1, 1]
    assert len(batches[-1].targets) == 0
    assert feed.weight == num_trained(split.rows[:2])


def test_without_steps_nothing_is_fed(task: LanguageTask) -> None:
    assert list(feeds(task, iter([]), anywhere(0), micro_batch_size=2)) == []


def test_what_the_rows_raise_is_raised_after_what_came_before(
    split: StoredSplit, task: LanguageTask
) -> None:
    def rows() -> Iterator[Rows]:
        yield split.rows[:2]
        yield split.rows[2:4]
        raise RuntimeError("the stream broke")

    coming = feeds(task, rows(), anywhere(2), micro_batch_size=2)
    for start in (0, 2):
        batch: Any
        (batch,) = next(coming).batches
        assert batch.input_ids.tolist() == split.rows[start : start + 2]["tokens"].tolist()
    with pytest.raises(RuntimeError, match="the stream broke"):
        next(coming)


def test_the_next_step_is_made_while_one_is_used(split: StoredSplit, task: LanguageTask) -> None:
    second = threading.Event()

    def rows() -> Iterator[Rows]:
        yield split.rows[:2]
        second.set()
        yield split.rows[2:4]

    coming = feeds(task, rows(), anywhere(2), micro_batch_size=2)
    next(coming)
    assert second.wait(30)
    assert len(list(coming)) == 1


def test_rows_are_made_without_a_second_pool_of_threads_that_compute(
    task: LanguageTask,
) -> None:
    """With more of these than cores, OpenMP puts all of them to sleep at each barrier."""
    rows = np.zeros(64, row_type(1024, np.dtype(np.uint16)))
    rows["flags"] = TRAINED
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        coming = feeds(task, iter([rows, rows]), anywhere(64), micro_batch_size=64)
        others = _threads()
        next(coming)
        # Not their number: a thread of an earlier test may end meanwhile.
        assert len(_threads() - others) == 1
    finally:
        torch.set_num_threads(before)


def _threads() -> set[int]:
    return {thread.id for thread in psutil.Process().threads()}


def test_a_run_that_ends_early_leaves_the_rest(split: StoredSplit, task: LanguageTask) -> None:
    drawn: list[int] = []

    def rows() -> Iterator[Rows]:
        for number in range(100):
            drawn.append(number)
            yield split.rows[np.array([number % len(split)])]

    coming = feeds(task, rows(), anywhere(1), micro_batch_size=1)
    for _ in range(3):
        next(coming)
    del coming
    assert len(drawn) <= 5
