"""When a run ends for want of improvement, and which of its models is the best."""

import math

import pytest

from moray.train.early_stopping import Evaluations


def reported(patience: int | None, losses: list[float]) -> Evaluations:
    """Evaluations every 10 steps."""
    return Evaluations(patience, {10 * (1 + i): loss for i, loss in enumerate(losses)})


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([], None),
        ([2.0], 10),
        ([3.0, 2.0, 1.0], 30),
        ([3.0, 1.0, 2.0], 20),
        # Equal is not better.
        ([3.0, 1.0, 1.0, 1.0], 20),
    ],
)
def test_the_best_step_is_the_first_of_the_lowest_loss(
    losses: list[float], best: int | None
) -> None:
    assert reported(None, losses).best == best


@pytest.mark.parametrize(
    ("patience", "losses", "stop"),
    [
        (1, [], False),
        (1, [2.0], False),
        (1, [2.0, 1.0], False),
        (1, [2.0, 2.0], True),
        (1, [2.0, 3.0], True),
        (2, [2.0, 3.0], False),
        (2, [2.0, 3.0, 2.5], True),
        # Better than the one before is not enough: it has to be better than the best.
        (2, [2.0, 3.0, 2.1], True),
        (2, [2.0, 3.0, 1.0], False),
        (2, [2.0, 3.0, 1.0, 4.0], False),
        (2, [2.0, 3.0, 1.0, 4.0, 4.0], True),
        (None, [1.0, *[2.0] * 50], False),
    ],
)
def test_a_run_ends_after_so_many_evaluations_without_a_lower_loss(
    patience: int | None, losses: list[float], stop: bool
) -> None:
    assert reported(patience, losses).stop is stop


def test_a_resumed_run_ends_where_the_whole_one_does() -> None:
    losses = [2.0, 1.0, 1.5, 1.2, 0.9, 1.1, 1.1, 1.1]
    whole = [count for count in range(9) if reported(3, losses[:count]).stop]
    assert whole == [8]
    for before in range(8):
        resumed = reported(3, losses[:before])
        stops = []
        for number in range(before, 8):
            resumed.losses[10 * (number + 1)] = losses[number]
            stops += [number + 1] if resumed.stop else []
        assert stops == whole


def test_a_loss_that_is_no_number_is_never_the_best() -> None:
    assert Evaluations(1, {1: math.nan, 2: 5.0, 3: 6.0}).best == 2
