"""Datasets without copies of their rows."""

import json
from pathlib import Path

import pytest
from repeated import split_of_rows, write_repeated

from moray.errors import UserError


def test_with_exact_each_row_is_there_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_repeated(tmp_path)
    before, _ = split_of_rows(tmp_path)
    assert len(before["train"]) > len({*before["train"]})
    after, described = split_of_rows(tmp_path, deduplicate="exact")
    kept = [row for split in after.values() for row in split]
    assert sorted(kept) == sorted({*rows})
    assert sum(described["duplicates"].values()) == 100
    assert ", 100 duplicates dropped" in capsys.readouterr().err
    assert "near_copies" not in described
    proof = json.loads((tmp_path / "exact/proof.json").read_text())
    assert all(one["holds"] for one in proof["comparisons"])


def test_rows_that_are_all_alike_leave_none_to_test_on(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "the same"})] * 50
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"no row is left for"):
        split_of_rows(tmp_path, deduplicate="exact")
    assert not (tmp_path / "exact").exists()
