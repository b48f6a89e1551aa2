"""Which rows make up a step, from one store or from several."""

import numpy as np
import pytest

from moray.rows.mixture import Interleaving, Mixture
from moray.rows.order import Order

# Rows of the windows of each store, and the shares.
STORES = [
    ([[10]], [1.0]),
    ([[3, 0, 4, 0]], [0.2]),
    ([[10], [4, 6]], [0.7, 0.3]),
    ([[5] * 20, [1], [0, 7, 0]], [1, 1, 1]),
    ([[50], [50], [50]], [90, 1, 9]),
]
SHARES = [shares for _, shares in STORES]


def sequence(mixture: Mixture, steps: int) -> list[tuple[int, int]]:
    rows = []
    for step in range(steps):
        stores, numbers = mixture.rows(step)
        rows += list(zip(stores.tolist(), numbers.tolist(), strict=True))
    return rows


@pytest.mark.parametrize(("windows", "shares"), STORES)
@pytest.mark.parametrize("batch", [1, 5, 16])
def test_each_store_goes_on_in_its_own_order(
    windows: list[list[int]], shares: list[float], batch: int
) -> None:
    rows = sequence(Mixture(windows, shares, batch, seed=1), 60)
    assert len(rows) == 60 * batch
    for store, sizes in enumerate(windows):
        mine = [number for owner, number in rows if owner == store]
        assert mine == Order(sizes, seed=1).rows(0, len(mine)).tolist()


@pytest.mark.parametrize("shares", SHARES)
def test_every_part_of_the_sequence_has_the_shares(shares: list[float]) -> None:
    interleaving = Interleaving(shares)
    for first, end in ((0, 20), (0, 1000), (999, 2345), (10**9, 10**9 + 500)):
        counts = np.bincount(interleaving.stores(first, end), minlength=len(shares))
        expected = (end - first) * np.array(shares) / sum(shares)
        assert np.abs(counts - expected).max() <= len(shares)


@pytest.mark.parametrize("shares", SHARES)
def test_positions_are_where_the_rows_of_a_store_are(shares: list[float]) -> None:
    interleaving = Interleaving(shares)
    owners = interleaving.stores(0, 5000)
    for store in range(len(shares)):
        places = np.flatnonzero(owners == store)
        for low, high in ((0, 1), (0, len(places)), (7, 19), (len(places) - 1, len(places))):
            found = interleaving.positions(store, low, high)
            assert found.tolist() == places[low:high].tolist()
        assert interleaving.counts(5000)[store] == len(places)


def test_a_step_does_not_depend_on_what_was_asked_before() -> None:
    """So a resumed run goes on with the rows that it would have had."""
    windows, shares = [[0, 7, 0, 0, 1] * 5, [5] * 20], [0.6, 0.4]
    expected = sequence(Mixture(windows, shares, 7, seed=1), 12)
    mixture = Mixture(windows, shares, 7, seed=1)
    for step in (11, 0, 5, 5, 10, 1, 11):
        Mixture([[1], [2]], [1, 1], 7, seed=2).rows(step)
        stores, numbers = mixture.rows(step)
        assert [*zip(stores, numbers, strict=True)] == expected[7 * step : 7 * (step + 1)]


@pytest.mark.parametrize(("windows", "shares"), STORES)
@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 5), (3, 12)])
def test_the_size_of_a_step_does_not_change_the_sequence(
    windows: list[list[int]], shares: list[float], one: int, other: int
) -> None:
    first, second = (
        sequence(Mixture(windows, shares, batch, seed=1), 60 // batch) for batch in (one, other)
    )
    assert first == second


@pytest.mark.parametrize(
    ("num_rows", "batch", "num_epochs", "steps"),
    [(10, 5, 1, 2), (10, 4, 1, 3), (10, 4, 2, 5), (10, 4, 0.5, 2), (10, 4, 0.01, 1), (3, 16, 1, 1)],
)
def test_the_last_step_is_filled_up(
    num_rows: int, batch: int, num_epochs: float, steps: int
) -> None:
    assert Mixture([[num_rows - 2, 2]], [1.0], batch, seed=0).num_steps(num_epochs) == steps
    assert Mixture([[num_rows - 2], [2]], [9, 1], batch, seed=0).num_steps(num_epochs) == steps
