"""Which rows make up a step."""

import pytest

from moray.tokens.order import Order

SIZES = [(10, 5), (10, 4), (7, 3), (3, 7), (1, 4), (5, 5), (64, 16)]


def sequence(order: Order, steps: int) -> list[int]:
    return [row for step in range(steps) for row in order.rows(step).tolist()]


@pytest.mark.parametrize(("num_rows", "batch"), SIZES)
def test_each_epoch_sees_each_row_once(num_rows: int, batch: int) -> None:
    order = Order(num_rows, batch, seed=1)
    rows = sequence(order, order.num_steps(4))
    for epoch in range(4):
        assert sorted(rows[epoch * num_rows : (epoch + 1) * num_rows]) == list(range(num_rows))


@pytest.mark.parametrize(("num_rows", "batch"), SIZES)
def test_every_step_is_full(num_rows: int, batch: int) -> None:
    order = Order(num_rows, batch, seed=1)
    assert all(len(order.rows(step)) == batch for step in range(10))


@pytest.mark.parametrize(("num_rows", "batch"), SIZES)
def test_a_step_does_not_depend_on_what_was_asked_before(num_rows: int, batch: int) -> None:
    expected = [Order(num_rows, batch, seed=1).rows(step).tolist() for step in range(12)]
    order = Order(num_rows, batch, seed=1)
    for step in (11, 0, 5, 5, 10, 1, 11):
        Order(num_rows + 1, batch, seed=2).rows(step)
        assert order.rows(step).tolist() == expected[step]


def test_a_step_takes_the_end_of_one_epoch_and_the_start_of_the_next() -> None:
    rows = sequence(Order(10, 4, seed=1), 5)
    straddling = Order(10, 4, seed=1).rows(2).tolist()
    assert straddling == rows[8:12]
    assert set(straddling[:2]) == set(range(10)) - set(rows[:8])


@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 5), (3, 12)])
def test_the_size_of_a_step_does_not_change_the_sequence(one: int, other: int) -> None:
    first, second = (sequence(Order(9, batch, seed=1), 60 // batch) for batch in (one, other))
    shared = min(len(first), len(second))
    assert first[:shared] == second[:shared]


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    epochs = [
        tuple(Order(50, 50, seed=seed).rows(epoch).tolist())
        for seed in range(3)
        for epoch in (0, 1)
    ]
    assert len({*epochs, tuple(range(50))}) == 7


def test_rows_are_not_to_be_changed_by_who_gets_them() -> None:
    order = Order(10, 5, seed=1)
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
    assert Order(num_rows, batch, seed=0).num_steps(num_epochs) == steps
