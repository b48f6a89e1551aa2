"""Values that mean the same, as different files write them."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from moray.corpus.values import group_key

EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    "same",
    [
        [1, 1.0, "1", "1.0", "1.", " 01 ", "+1", Decimal("1.00"), b"1"],
        [-12.5, "-12.50", "-012.5", Decimal("-12.5")],
        [0, 0.0, "0", "000"],
        [10**20, str(10**20), float(10**20)],
        ["Zoë", "Zoe\u0308", " Zoë\n", "Zoë".encode()],
        [True, "True"],
        [date(2024, 5, 1), datetime(2024, 5, 1), "2024-05-01", "2024-05-01 00:00:00"],
        [
            datetime(2024, 5, 1, 7, 30),
            datetime(2024, 5, 1, 7, 30, tzinfo=UTC),
            datetime(2024, 5, 1, 9, 30, tzinfo=EAST),
            "2024-05-01 07:30:00",
            "2024-05-01T09:30:00+02:00",
        ],
        [UUID(int=5), "00000000-0000-0000-0000-000000000005"],
        [{"a": 1, "b": None}, {"a": 1.0}],
        [["x", 1], ["x", "1.0"]],
    ],
)
def test_what_means_the_same_is_one_group(same: list[Any]) -> None:
    keys = {group_key(value) for value in same}
    assert len(keys) == 1
    assert keys != {None}


def test_what_means_something_else_is_another_group() -> None:
    different = ["a", "A", "a b", 1, 10, -1, 1.5, "1.5.1", "1e", "2024-05-01", "2024-05-02"]
    assert len({group_key(value) for value in different}) == len(different)


@pytest.mark.parametrize("missing", [None, float("nan"), "", "  ", "nan", "NaN", [], {}])
def test_a_missing_value_is_no_group(missing: Any) -> None:
    assert group_key(missing) is None
