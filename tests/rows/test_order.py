"""Which rows make up a step."""

from itertools import pairwise

import numpy as np
import pytest

from moray.rows.order import Group, Order

# Rows of windows, and rows of a step.
CASES = [
    ([10], 5),
    ([10], 4),
    ([3], 7),
    ([1], 4),
    ([64], 16),
    ([4, 6], 4),
    ([3, 0, 4, 0], 5),
    ([0, 7, 0, 0, 1] * 5, 6),
    ([5] * 20, 7),
    ([0, 3, 1] * 10, 6),
    ([2, 9, 1] * 9, 100),
]
# Of more than 16 windows, so that there are at least three groups.
MANY = [windows for windows, _ in CASES if np.count_nonzero(windows) > 16]


def sequence(order: Order, steps: int) -> list[int]:
    return [row for step in range(steps) for row in order.rows(step).tolist()]


def rows_of(windows: list[int], group: Group) -> list[int]:
    """The rows of a group's windows, one window after another."""
    ends = np.cumsum(windows)
    spans = [range(int(ends[w]) - windows[w], int(ends[w])) for w in group.windows]
    assert [len(span) for span in spans] == list(group.sizes)
    return [row for span in spans for row in span]


@pytest.mark.parametrize(("windows", "batch"), CASES)
def test_each_epoch_sees_each_row_once(windows: list[int], batch: int) -> None:
    order, num_rows = Order(windows, batch, seed=1), sum(windows)
    rows = sequence(order, order.num_steps(4))
    for epoch in range(4):
        assert sorted(rows[epoch * num_rows : (epoch + 1) * num_rows]) == list(range(num_rows))


@pytest.mark.parametrize(("windows", "batch"), CASES)
def test_every_step_is_full(windows: list[int], batch: int) -> None:
    order = Order(windows, batch, seed=1)
    assert all(len(order.rows(step)) == batch for step in range(10))


@pytest.mark.parametrize(("windows", "batch"), CASES)
def test_a_step_does_not_depend_on_what_was_asked_before(windows: list[int], batch: int) -> None:
    """So a resumed run goes on with the rows that it would have had."""
    expected = [Order(windows, batch, seed=1).rows(step).tolist() for step in range(12)]
    order = Order(windows, batch, seed=1)
    for step in (11, 0, 5, 5, 10, 1, 11):
        Order([*windows, 1], batch, seed=2).rows(step)
        assert order.rows(step).tolist() == expected[step]


@pytest.mark.parametrize(("windows", "batch"), CASES)
def test_groups_hold_the_rows_of_the_steps_wherever_the_sequence_is_cut(
    windows: list[int], batch: int
) -> None:
    order, num_rows = Order(windows, batch, seed=3), sum(windows)
    whole = sequence(order, order.num_steps(4))
    draw = np.random.default_rng(0)
    for _ in range(30):
        first, end = sorted(draw.integers(4 * num_rows + 1, size=2).tolist())
        groups = list(Order(windows, batch, seed=3).groups(first, end))
        picked, place = [], first
        for group in groups:
            assert group.first_position == place
            mine = np.array(rows_of(windows, group))[group.picked()]
            assert 0 < len(mine) == group.high - group.low
            picked += mine.tolist()
            place += len(mine)
        assert picked == whole[first:end]


@pytest.mark.parametrize("windows", MANY)
def test_what_is_shuffled_together_does_not_grow_with_the_corpus(windows: list[int]) -> None:
    order = Order(windows, 4, seed=1)
    groups = list(order.groups(0, order.num_rows))
    assert [len(group.windows) for group in groups[:-1]] == [8] * (len(groups) - 1)
    assert sorted(w for group in groups for w in group.windows) == np.flatnonzero(windows).tolist()
    for group in groups:
        rows = np.array(rows_of(windows, group))[group.picked()].tolist()
        assert sorted(rows) == sorted(rows_of(windows, group))
        assert rows != rows_of(windows, group), "rows of a group are shuffled"


@pytest.mark.parametrize("windows", MANY)
def test_other_windows_meet_in_each_epoch(windows: list[int]) -> None:
    order = Order(windows, 4, seed=1)
    companies = []
    for epoch in range(3):
        groups = order.groups(epoch * order.num_rows, (epoch + 1) * order.num_rows)
        companies.append({frozenset(group.windows) for group in groups})
    for one, other in pairwise(companies):
        assert one.isdisjoint(other)
    neighbours = {frozenset(np.flatnonzero(windows)[start : start + 8]) for start in (0, 8)}
    assert companies[0].isdisjoint(neighbours)


def test_a_step_takes_the_end_of_one_epoch_and_the_start_of_the_next() -> None:
    rows = sequence(Order([10], 4, seed=1), 5)
    straddling = Order([10], 4, seed=1).rows(2).tolist()
    assert straddling == rows[8:12]
    assert set(straddling[:2]) == set(range(10)) - set(rows[:8])


@pytest.mark.parametrize("windows", [[9], [1] * 9, [0, 2] * 12])
@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 5), (3, 12)])
def test_the_size_of_a_step_does_not_change_the_sequence(
    windows: list[int], one: int, other: int
) -> None:
    first, second = (sequence(Order(windows, batch, seed=1), 60 // batch) for batch in (one, other))
    shared = min(len(first), len(second))
    assert first[:shared] == second[:shared]


@pytest.mark.parametrize("windows", [[50], [5] * 10])
def test_epochs_and_seeds_are_shuffled_differently(windows: list[int]) -> None:
    epochs = [
        tuple(Order(windows, 50, seed=seed).rows(epoch).tolist())
        for seed in range(3)
        for epoch in (0, 1)
    ]
    assert len({*epochs, tuple(range(50))}) == 7


def test_rows_are_not_to_be_changed_by_who_gets_them() -> None:
    order = Order([10], 5, seed=1)
    expected = order.rows(0).tolist()
    order.rows(0)[:] = 99
    assert order.rows(0).tolist() == expected


@pytest.mark.parametrize(
    ("num_rows", "batch", "num_epochs", "steps"),
    [(10, 5, 1, 2), (10, 4, 1, 3), (10, 4, 2, 5), (10, 4, 0.5, 2), (10, 4, 0.01, 1), (3, 16, 1, 1)],
)
def test_the_last_step_is_filled_up(
    num_rows: int, batch: int, num_epochs: float, steps: int
) -> None:
    assert Order([num_rows - 2, 2], batch, seed=0).num_steps(num_epochs) == steps
