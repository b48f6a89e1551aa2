"""The sample that stands for a whole split."""

import numpy as np
import pytest

from moray.rows.store import sample


@pytest.mark.parametrize(("total", "count", "size"), [(10, 4, 4), (10, 10, 10), (10, 99, 10)])
def test_it_is_of_distinct_numbers_in_order(total: int, count: int, size: int) -> None:
    drawn = sample(total, count)
    assert len(drawn) == size
    assert np.all(np.diff(drawn) > 0)
    assert set(drawn.tolist()) <= set(range(total))


def test_of_nothing_it_is_empty() -> None:
    assert sample(0, 5).tolist() == []


def test_it_is_the_same_each_time_and_part_of_a_larger_one() -> None:
    assert sample(1000, 64).tolist() == sample(1000, 64).tolist()
    assert set(sample(1000, 64).tolist()) < set(sample(1000, 65).tolist())


def test_it_favours_neither_end() -> None:
    """The mean of 64 of 10,000 numbers lies within four standard errors of theirs."""
    error = 10_000 / np.sqrt(12 * 64)
    assert abs(sample(10_000, 64).mean() - 5000) < 4 * error
