"""The learning rate over a run."""

import math
from itertools import pairwise

import pytest

from moray.config.schema import Train
from moray.train.schedule import learning_rate


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
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_the_rates_of_the_shortest_runs_lie_between_zero_and_the_peak(
    name: str, num_steps: int
) -> None:
    for ratio in (0.0, 0.03, 0.5, 0.8):
        course = rates(num_steps, lr_scheduler_type=name, warmup_ratio=ratio, min_lr_ratio=0)
        assert all(0 < rate <= 1 for rate in course)
