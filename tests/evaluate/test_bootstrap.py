"""Intervals of means."""

import numpy as np
import pytest

from moray.evaluate.bootstrap import compare_means


def test_the_mean_has_an_interval_and_the_difference_is_of_pairs() -> None:
    draw = np.random.default_rng(0)
    base = draw.random(400)
    tuned = base + 0.1 + 0.01 * draw.random(400)
    found = compare_means(
        base.tolist(), tuned.tolist(), np.arange(400), samples=500, confidence=0.95
    )
    assert found["samples"] == 400
    assert found["base"]["value"] == pytest.approx(base.mean())
    half = 1.96 * base.std() / 20
    assert found["base"]["high"] - base.mean() == pytest.approx(half, rel=0.15)
    # That of two samples apart would be about as wide as the base's.
    assert found["difference"]["high"] - found["difference"]["low"] < 0.002
    assert found["difference"]["value"] == pytest.approx((tuned - base).mean())


def test_values_of_a_group_are_resampled_together() -> None:
    """Four copies of each value say no more than one."""
    values = np.random.default_rng(0).random(50)
    groups, copies = np.repeat(np.arange(50), 4), np.repeat(values, 4).tolist()
    alone = compare_means(values.tolist(), values.tolist(), np.arange(50), 300, 0.9)
    found = compare_means(copies, copies, groups, 300, 0.9)
    assert (alone.pop("samples"), found.pop("samples")) == (50, 200)
    assert found["base"] == pytest.approx(alone["base"])
