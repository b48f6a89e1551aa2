"""The learning rate over a run; when a run ends early, and which of its models is the best."""

import math
from itertools import pairwise, product

import pytest

from moray.config.schema.train import Train
from moray.train.schedule import Evaluations, learning_rate, never_stops_early


def rates(num_steps: int, **settings: object) -> list[float]:
    train = Train.model_validate({"learning_rate": 1.0, **settings})
    return [learning_rate(train, step, num_steps) for step in range(num_steps)]


def test_warms_up_in_equal_parts_from_above_zero_to_the_peak() -> None:
    first = rates(100, warmup_ratio=0.04)[:5]
    assert first == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_cosine_passes_the_middle_and_ends_at_its_lowest() -> None:
    course = rates(1000, warmup_ratio=0, min_lr_ratio=0.1)
    assert course[0] == 1.0
    assert course[500] == pytest.approx(0.55)
    assert course[250] == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)
    assert course[-1] == pytest.approx(0.1, abs=1e-4)
    assert course == sorted(course, reverse=True)


def test_constant_stays_at_the_peak_after_the_warm_up() -> None:
    assert set(rates(50, lr_scheduler_type="constant", warmup_ratio=0.1)[5:]) == {1.0}


def test_linear_goes_down_by_equal_steps_to_its_lowest() -> None:
    course = rates(110, lr_scheduler_type="linear", warmup_ratio=1 / 11, min_lr_ratio=0.2)
    assert course[9] < course[10] == 1.0
    falls = [before - after for before, after in pairwise(course[10:])]
    assert falls == pytest.approx([0.8 / 100] * 99)
    # The step after the last one would be at the lowest.
    assert course[-1] - falls[-1] == pytest.approx(0.2)


@pytest.mark.parametrize("lowest", [0.0, 0.1, 1.0])
def test_wsd_stays_at_the_peak_and_goes_down_in_the_last_share_of_all_steps(lowest: float) -> None:
    settings = {"lr_scheduler_type": "wsd", "warmup_ratio": 0.1, "decay_ratio": 0.25}
    course = rates(200, **settings, min_lr_ratio=lowest)
    assert course[19] < 1.0
    assert set(course[20:151]) == {1.0}
    expected = [1 - (1 - lowest) * done / 50 for done in range(50)]
    assert course[150:] == pytest.approx(expected)


def test_wsd_may_go_down_all_the_way_from_the_warm_up() -> None:
    settings = {"lr_scheduler_type": "wsd", "min_lr_ratio": 0.0}
    assert rates(4, **settings, warmup_ratio=0, decay_ratio=1) == [1, 0.75, 0.5, 0.25]
    course = rates(100, **settings, warmup_ratio=0.5, decay_ratio=0.5)
    assert max(course) == course[50] == 1.0
    assert course[99] == pytest.approx(1 / 50)


@pytest.mark.parametrize("name", ["cosine", "linear", "constant", "wsd"])
def test_the_rates_of_the_shortest_runs_lie_between_zero_and_the_peak(name: str) -> None:
    for num_steps, ratio in product((1, 2, 3), (0.0, 0.03, 0.5, 0.8)):
        course = rates(num_steps, lr_scheduler_type=name, warmup_ratio=ratio, min_lr_ratio=0)
        assert all(0 < rate <= 1 for rate in course)


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


@pytest.mark.parametrize("num_steps", [1, 7, 10, 39, 40, 41])
@pytest.mark.parametrize("eval_steps", [1, 4, 10, 50])
@pytest.mark.parametrize("patience", [1, 2, 3, 9])
def test_a_patience_that_cannot_stop_a_run_is_said(
    num_steps: int, eval_steps: int, patience: int
) -> None:
    """Of a run whose first evaluation is the best."""
    evaluations = Evaluations(patience, {})
    stops = []
    for step in range(eval_steps, num_steps, eval_steps):
        evaluations.losses[step] = float(step)
        stops.append(evaluations.stop)
    settings = Train(
        max_steps=num_steps,
        eval_steps=eval_steps,
        learning_rate=1.0,
        early_stopping_patience=patience,
    )
    line = never_stops_early(settings, num_steps)
    assert (line is None) is any(stops)
    if line and "lower it to" in line:
        lower = int(line.partition("lower it to ")[2].split()[0])
        shorter = settings.model_copy(update={"early_stopping_patience": lower})
        assert never_stops_early(shorter, num_steps) is None
    else:
        assert (line is None) or (num_steps - 1) // eval_steps < 2
    without = settings.model_copy(update={"early_stopping_patience": None})
    assert never_stops_early(without, num_steps) is None


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
