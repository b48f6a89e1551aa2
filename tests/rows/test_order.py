"""Which rows make up a step."""

from itertools import pairwise, product

import numpy as np
import pytest

from moray.rows.order import Group, Interleaving, Mixture, Order

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
            indices, place = [], first
            for group in groups:
                assert group.first_position == place, (windows, first, end)
                mine = np.array(rows_of(windows, group))[group.indices()]
                assert 0 < len(mine) == group.high - group.low, (windows, first, end)
                indices += mine.tolist()
                place += len(mine)
            assert indices == whole[first:end], (windows, first, end)
            # Whatever was asked before.
            assert order.rows(first, end).tolist() == indices, (windows, first, end)


@pytest.mark.parametrize("windows", MANY)
def test_what_is_shuffled_together_does_not_grow_with_the_corpus(windows: list[int]) -> None:
    order = Order(windows, seed=1)
    groups = list(order.groups(0, order.num_rows))
    assert [len(group.windows) for group in groups[:-1]] == [8] * (len(groups) - 1)
    assert sorted(w for group in groups for w in group.windows) == np.flatnonzero(windows).tolist()
    for group in groups:
        rows = np.array(rows_of(windows, group))[group.indices()].tolist()
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


# Rows of the windows of each store, and the shares.
STORES: list[tuple[list[list[int]], list[float]]] = [
    ([[10]], [1.0]),
    ([[3, 0, 4, 0]], [0.2]),
    ([[10], [4, 6]], [0.7, 0.3]),
    ([[5] * 20, [1], [0, 7, 0]], [1, 1, 1]),
    ([[50], [50], [50]], [90, 1, 9]),
]


def sequence(mixture: Mixture, steps: int) -> list[tuple[int, int]]:
    rows = []
    for step in range(steps):
        stores, numbers = mixture.rows(step)
        rows += list(zip(stores.tolist(), numbers.tolist(), strict=True))
    return rows


def test_each_store_goes_on_in_its_own_order() -> None:
    for (windows, shares), batch in product(STORES, (1, 5, 16)):
        rows = sequence(Mixture(windows, shares, batch, seed=1), 60)
        assert len(rows) == 60 * batch, (windows, batch)
        for store, sizes in enumerate(windows):
            mine = [number for owner, number in rows if owner == store]
            assert mine == Order(sizes, seed=1).rows(0, len(mine)).tolist(), (windows, batch)


def test_every_part_of_the_sequence_has_the_shares() -> None:
    parts = [(0, 20), (0, 1000), (999, 2345), (10**9, 10**9 + 500)]
    for (_, shares), (first, end) in product(STORES, parts):
        counts = np.bincount(Interleaving(shares).stores(first, end), minlength=len(shares))
        expected = (end - first) * np.array(shares) / sum(shares)
        assert np.abs(counts - expected).max() <= len(shares), (shares, first, end)


def test_positions_are_where_the_rows_of_a_store_are() -> None:
    for _, shares in STORES:
        interleaving = Interleaving(shares)
        owners = interleaving.stores(0, 5000)
        for store in range(len(shares)):
            places = np.flatnonzero(owners == store)
            for low, high in ((0, 1), (0, len(places)), (7, 19), (len(places) - 1, len(places))):
                found = interleaving.positions(store, low, high)
                assert found.tolist() == places[low:high].tolist(), (shares, store, low, high)
            assert interleaving.counts(5000)[store] == len(places), (shares, store)


def test_a_step_does_not_depend_on_what_was_asked_before() -> None:
    """So a resumed run goes on with the rows that it would have had."""
    windows, shares = [[0, 7, 0, 0, 1] * 5, [5] * 20], [0.6, 0.4]
    expected = sequence(Mixture(windows, shares, 7, seed=1), 12)
    mixture = Mixture(windows, shares, 7, seed=1)
    for step in (11, 0, 5, 5, 10, 1, 11):
        Mixture([[1], [2]], [1, 1], 7, seed=2).rows(step)
        stores, numbers = mixture.rows(step)
        assert [*zip(stores, numbers, strict=True)] == expected[7 * step : 7 * (step + 1)]


def test_the_size_of_a_step_does_not_change_the_sequence() -> None:
    for windows, shares in STORES:
        sequences = [
            sequence(Mixture(windows, shares, batch, seed=1), 60 // batch)
            for batch in (1, 2, 3, 5, 12)
        ]
        assert all(other == sequences[0] for other in sequences), windows


def test_the_last_step_is_filled_up() -> None:
    for case in [
        (10, 5, 1, 2),
        (10, 4, 1, 3),
        (10, 4, 2, 5),
        (10, 4, 0.5, 2),
        (10, 4, 0.01, 1),
        (3, 16, 1, 1),
    ]:
        num_rows, batch, num_epochs, steps = case
        for windows, shares in (([[num_rows - 2, 2]], [1.0]), ([[num_rows - 2], [2]], [9.0, 1.0])):
            mixture = Mixture(windows, shares, int(batch), seed=0)
            assert mixture.num_steps(num_epochs) == steps, case
