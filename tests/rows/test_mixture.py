"""Which rows make up a step, from one store or from several."""

from itertools import product

import numpy as np

from moray.rows.order import Interleaving, Mixture, Order

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
