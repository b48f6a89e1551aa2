"""The results of small runs of each stage are those that were recorded for their version."""

from typing import Any

import pytest
from golden.recorded import ROWS, differences, fault, make, read

from moray.config.versions import RESULTS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("row", ROWS)
def test_results_are_those_of_their_version(row: str, made: dict[str, Any]) -> None:
    if found := fault(row, read().get(row), made):
        pytest.fail(found, pytrace=False)


def test_a_change_under_the_same_version_is_a_fault() -> None:
    row = "finetune language"
    before = {"loss": [5.29053, 4.1], "steps": 6}
    recorded = {"version": RESULTS[row], "results": before}
    assert fault(row, recorded, {row: {"loss": [5.29054, 4.1], "steps": 6}}) is None
    changed = {row: {"loss": [5.29053, 4.102], "steps": 6}}
    expected = "results of `finetune language` changed: raise its version, or undo it"
    assert fault(row, recorded, changed) == f"{expected} (loss/1: 4.1 → 4.102)"
    older = recorded | {"version": RESULTS[row] - 1}
    assert "it is 1 now: make golden" in str(fault(row, older, changed))


def test_digests_counts_and_what_is_missing_are_compared_exactly() -> None:
    before = {"file": "0a", "rows": 3, "loss": [1.0, 2.0], "kept": None}
    after = {"file": "0b", "rows": 4, "loss": [1.0], "kept": 0.0}
    assert [each.partition(":")[0] for each in differences(before, after)] == [
        "file",
        "kept",
        "loss",
        "rows",
    ]
