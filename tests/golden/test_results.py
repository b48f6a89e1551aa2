"""The results of small runs of each stage are those that were recorded for their version."""

from typing import Any

import pytest
from golden.around import AROUND
from golden.recorded import ROWS, differences, faults, make, read

from moray.config.versions import RESULTS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make(tmp_path_factory.mktemp("golden"), around=False)


@pytest.fixture(scope="module")
def made_around(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make(tmp_path_factory.mktemp("golden"), main=False)


def check(row: str, made: dict[str, Any]) -> None:
    if fault := faults(read(), made).get(row):
        pytest.fail(fault, pytrace=False)


@pytest.mark.parametrize("row", [row for row in ROWS if row not in AROUND])
def test_results_are_those_of_their_version(row: str, made: dict[str, Any]) -> None:
    check(row, made)


@pytest.mark.long
@pytest.mark.parametrize("row", [row for row in ROWS if row in AROUND])
def test_results_around_the_main_job_are_those_of_their_version(
    row: str, made_around: dict[str, Any]
) -> None:
    check(row, made_around)


def test_each_stage_still_compares_its_results_with_plain_libraries(made: dict[str, Any]) -> None:
    """A comparison that is no longer made says nothing; if one is new, `make golden` records it."""
    assert made["proofs"] == read()["proofs"]


def test_a_change_under_the_same_version_is_a_fault() -> None:
    """Of the row that it begins with: what is made from its results needs no other version."""
    before = {row: {"loss": [5.29053, 4.1], "steps": 6} for row in ROWS}
    recorded = {row: {"version": RESULTS[row], "results": before[row]} for row in ROWS}
    rounded = before | {"export text": {"loss": [5.29054, 4.1], "steps": 6}}
    assert faults(recorded, rounded) == {}
    other = {"loss": [5.29053, 4.102], "steps": 6}
    changed = before | {"finetune language": other, "export text": other, "report": other}
    assert faults(recorded, changed) == {
        row: f"results of `{row}` changed: raise its version, or undo it (loss/1: 4.1 → 4.102)"
        for row in ("finetune language", "report")
    }


def test_a_version_that_was_raised_has_to_be_recorded() -> None:
    recorded = {row: {"version": RESULTS[row], "results": 1} for row in ROWS}
    recorded["card"]["version"] -= 1
    assert faults(recorded, dict.fromkeys(ROWS, 1)) == {
        "card": "results of `card` are recorded for version 0, and it is 1 now: make golden"
    }


def test_digests_counts_and_what_is_missing_are_compared_exactly() -> None:
    before = {"file": "0a", "rows": 3, "loss": [1.0, 2.0], "kept": None}
    after = {"file": "0b", "rows": 4, "loss": [1.0], "kept": 0.0}
    assert [each.partition(":")[0] for each in differences(before, after)] == [
        "file",
        "kept",
        "loss",
        "rows",
    ]
