"""The learning rate over a run."""

import math

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
