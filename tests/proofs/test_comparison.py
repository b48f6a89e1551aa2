import json
import math
from pathlib import Path
from typing import Any

import pytest

from moray.errors import UserError
from moray.proofs.comparison import Comparison, collect, conclude, read_proof, summary, write_proof
from moray.provenance.lineage import verify
from moray.provenance.manifest import MANIFEST, write_manifest


def figures(here: Any, plain: Any, **more: Any) -> Comparison:
    return Comparison("loss", here, plain, "numpy 2", 3, **more)


@pytest.mark.parametrize(
    ("here", "plain", "tolerance", "holds"),
    [
        (1.0, 1.0 + 1e-5, 1e-4, True),
        (1.0, 1.001, 1e-4, False),
        (3.4e-6, 3.5e-6, 1e-4, True),
        (3.4e-6, 3.4e-5, 1e-4, False),
        (math.nan, math.nan, 1e-4, False),
        (math.inf, 1.0, 1e-4, False),
        ([1, 2], [1, 2], 0.0, True),
        ([1, 2], [2, 1], 0.0, False),
        ("</s>", "<|im_end|>", 0.0, False),
    ],
)
def test_figures_are_equal_to_within_the_tolerance(
    here: Any, plain: Any, tolerance: float, holds: bool
) -> None:
    assert figures(here, plain, tolerance=tolerance).holds == holds


@pytest.mark.parametrize(("plain", "holds"), [(1.09, True), (1.11, False)])
def test_what_rounding_explains_is_no_difference(plain: float, holds: bool) -> None:
    assert figures(1.0, plain, tolerance=1e-2, rounding=0.1).holds == holds


def test_a_difference_is_refused_with_both_figures_and_a_remedy() -> None:
    with pytest.raises(UserError) as caught:
        conclude([figures(1.0, 2.0)], "refuse", "runs.tuned")
    assert str(caught.value) == (
        "runs.tuned: differs from the plain library in loss: 1, numpy 2: 2 on 3 of your rows; "
        "please report it, or set proofs: warn to go on"
    )


def test_texts_that_differ_in_line_breaks_are_shown_in_a_line() -> None:
    line = figures("a\r\nb", "a\nb\n").line
    assert line == 'loss: a\\r\\nb, numpy 2: "a\\nb\\n" on 3 of your rows'


def test_lists_are_shown_from_where_they_differ() -> None:
    same = [*range(100)]
    line = figures([*same, 1, 2], [*same, 3, 2]).line
    assert line == "loss: [99, 1, 2], numpy 2: [99, 3, 2] on 3 of your rows"


@pytest.mark.parametrize("mode", ["warn", "refuse"])
def test_what_comes_from_the_user_s_model_is_told_and_never_refused(
    mode: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = conclude([figures(1.0, 2.0, advisory=True)], mode, "runs.tuned")
    assert not record["holds"]
    printed = capsys.readouterr().err
    assert printed == "warning: runs.tuned: loss: 1, numpy 2: 2 on 3 of your rows\n"


def test_a_plain_library_that_fails_is_told_and_stops_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> list[Comparison]:
        raise RuntimeError("no kernel\nfor this")

    compared = collect("loss", fail)
    (record,) = conclude(compared, "refuse", "runs.tuned")
    assert record["skipped"] == "the plain library failed (RuntimeError: no kernel)"
    assert "warning: loss: not compared, the plain library failed" in capsys.readouterr().err


def test_a_proof_is_read_back_and_verified(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("w")
    write_manifest(tmp_path)
    records = conclude([figures(1.0, 1.0)], "refuse", "runs.tuned")
    write_proof(tmp_path, records, [tmp_path / MANIFEST])
    assert read_proof(tmp_path) == records
    assert verify([tmp_path]).broken == []
    written = json.loads((tmp_path / "proof.json").read_text())
    written["comparisons"][0]["plain"] = 2.0
    (tmp_path / "proof.json").write_text(json.dumps(written))
    assert verify([tmp_path]).broken == [
        f"{tmp_path / 'proof.json'}: doesn't match its own SHA-256"
    ]


def test_a_summary_says_how_many_differ() -> None:
    both = [figures(1.0, 1.0), figures(1.0, 2.0), Comparison("tokens", skipped="no time")]
    records = conclude(both, "warn", "runs.tuned")
    assert summary(records[:1]) == "checked against numpy 2: all 1 equal"
    assert summary(records) == "checked against numpy 2: 1 of 2 differ"
    assert summary(records[2:]) is None
