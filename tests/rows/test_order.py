"""The order of a store's rows."""

from itertools import pairwise

import numpy as np
import pytest

from moray.rows.order import Group, Order

# Rows of windows.
CASES = [
    [10],
    [3],
    [1],
    [64],
    [4, 6],
    [3, 0, 4, 0],
    [0, 7, 0, 0, 1] * 5,
    [5] * 20,
    [0, 3, 1] * 10,
    [2, 9, 1] * 9,
]
# Of more than 16 windows, so that there are at least three groups.
MANY = [windows for windows in CASES if np.count_nonzero(windows) > 16]


def rows_of(windows: list[int], group: Group) -> list[int]:
    """The rows of a group's windows, one window after another."""
    ends = np.cumsum(windows)
    spans = [range(int(ends[w]) - windows[w], int(ends[w])) for w in group.windows]
    assert [len(span) for span in spans] == list(group.sizes)
    return [row for span in spans for row in span]


def test_each_epoch_sees_each_row_once() -> None:
    for windows in CASES:
        order, num_rows = Order(windows, seed=1), sum(windows)
        epochs = order.rows(0, 4 * num_rows).reshape(4, num_rows)
        assert np.sort(epochs).tolist() == [list(range(num_rows))] * 4, windows


def test_groups_hold_the_rows_of_the_steps_wherever_the_sequence_is_cut() -> None:
    for windows in CASES:
        order, num_rows = Order(windows, seed=3), sum(windows)
        whole = order.rows(0, 4 * num_rows).tolist()
        draw = np.random.default_rng(0)
        for _ in range(30):
            first, end = sorted(draw.integers(4 * num_rows + 1, size=2).tolist())
            groups = list(Order(windows, seed=3).groups(first, end))
            picked, place = [], first
            for group in groups:
                assert group.first_position == place, (windows, first, end)
                mine = np.array(rows_of(windows, group))[group.picked()]
                assert 0 < len(mine) == group.high - group.low, (windows, first, end)
                picked += mine.tolist()
                place += len(mine)
            assert picked == whole[first:end], (windows, first, end)
            # Whatever was asked before.
            assert order.rows(first, end).tolist() == picked, (windows, first, end)


@pytest.mark.parametrize("windows", MANY)
def test_what_is_shuffled_together_does_not_grow_with_the_corpus(windows: list[int]) -> None:
    order = Order(windows, seed=1)
    groups = list(order.groups(0, order.num_rows))
    assert [len(group.windows) for group in groups[:-1]] == [8] * (len(groups) - 1)
    assert sorted(w for group in groups for w in group.windows) == np.flatnonzero(windows).tolist()
    for group in groups:
        rows = np.array(rows_of(windows, group))[group.picked()].tolist()
        assert sorted(rows) == sorted(rows_of(windows, group))
        assert rows != rows_of(windows, group), "rows of a group are shuffled"


@pytest.mark.parametrize("windows", MANY)
def test_other_windows_meet_in_each_epoch(windows: list[int]) -> None:
    order = Order(windows, seed=1)
    companies = []
    for epoch in range(3):
        groups = order.groups(epoch * order.num_rows, (epoch + 1) * order.num_rows)
        companies.append({frozenset(group.windows) for group in groups})
    for one, other in pairwise(companies):
        assert one.isdisjoint(other)
    neighbours = {frozenset(np.flatnonzero(windows)[start : start + 8]) for start in (0, 8)}
    assert companies[0].isdisjoint(neighbours)


@pytest.mark.parametrize("windows", [[50], [5] * 10])
def test_epochs_and_seeds_are_shuffled_differently(windows: list[int]) -> None:
    epochs = [
        tuple(Order(windows, seed=seed).rows(50 * epoch, 50 * (epoch + 1)).tolist())
        for seed in range(3)
        for epoch in (0, 1)
    ]
    assert len({*epochs, tuple(range(50))}) == 7


def test_rows_are_not_to_be_changed_by_who_gets_them() -> None:
    order = Order([10], seed=1)
    expected = order.rows(0, 5).tolist()
    order.rows(0, 5)[:] = 99
    assert order.rows(0, 5).tolist() == expected
