"""Datasets without copies of their rows."""

import json
from pathlib import Path

import pytest
from repeated import split_of_rows, write_repeated

from moray.errors import UserError
from moray.stages.download import download


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


@pytest.mark.parametrize("source", ["hash", "own split"])
def test_copies_that_stay_are_said_with_the_key_that_drops_them(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"row {number}" for number in range(40)]
    files = {"train": str(tmp_path / "train.jsonl"), "test": str(tmp_path / "test.jsonl")}
    own = source == "own split"
    # Two in train are copies of others there, and two of a row that is held out.
    train = [*rows, "row 0", "row 1", *(["held out"] * 2 if own else [])]
    for split, texts in (("train", train), ("test", ["held out", "held out too"])):
        lines = (json.dumps({"text": text}) for text in texts)
        Path(files[split]).write_text("\n".join(lines))
    if not own:
        files.pop("test")
    shares = {"validation_share": 0, "test_share": 0.1}
    section = {"source": "files", "path": files, **(shares if not own else {"validation_share": 0})}
    lists = {split: [file] for split, file in files.items()}
    download(tmp_path / "out", section, lists)
    said = capsys.readouterr().err
    dropped = ", 2 copies of held-out rows dropped" if own else ""
    assert said.splitlines()[0].endswith(f" rows, 0.0 MB{dropped}")
    line = (
        "dataset out: 2 rows of train are copies of others there; deduplicate: exact drops such "
        "rows"
    )
    assert line in said.splitlines()
    download(tmp_path / "exact", {**section, "deduplicate": "exact"}, lists)
    said = capsys.readouterr().err
    assert f", {4 if own else 2} duplicates dropped" in said
    assert "of others there" not in said


def test_of_many_rows_copies_are_not_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_repeated(tmp_path)
    split_of_rows(tmp_path)
    assert "of train are copies of others there" in capsys.readouterr().err
    monkeypatch.setattr("moray.stages.download._MOST_COUNTED", 400)
    split_of_rows(tmp_path)
    assert "of train are copies of others there" not in capsys.readouterr().err


def test_rows_that_are_all_alike_leave_none_to_test_on(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "the same"})] * 50
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"no row is left for"):
        split_of_rows(tmp_path, deduplicate="exact")
    assert not (tmp_path / "exact").exists()
