"""Tables as people have them, from their files to a dataset."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from moray.corpus.dataset import SPLITS, read_documents
from moray.errors import UserError
from moray.provenance.manifest import sha256_file
from moray.stages.download import download

ROWS = [[f"Wörter {number}; and, more", f"é {number}\t“yes”", str(number)] for number in range(60)]
HEADER = ["prompt", "completion", "number"]
SHARES = {"validation_share": 0.2, "test_share": 0.2}


def write(
    file: Path, delimiter: str = ",", encoding: str = "utf-8", rows: list[list[str]] = ROWS
) -> Path:
    with file.open("w", encoding=encoding, newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows([HEADER, *rows])
    return file


def made(folder: Path, file: Path, proofs: Any = "refuse", **keys: Any) -> dict[str, Any]:
    """The digest of each split that a file becomes, and the description."""
    section = {
        "source": "files",
        "path": str(file),
        "format": "prompt-completion",
        **SHARES,
        **keys,
    }
    download(folder, section, {"train": [str(file)]}, proofs)
    splits = {split: sha256_file(folder / f"{split}.parquet") for split in SPLITS}
    return {**splits, "described": json.loads((folder / "dataset.json").read_text())}


def texts(folder: Path) -> set[str]:
    files = (folder / f"{split}.parquet" for split in SPLITS)
    return {row["prompt"] for file in files for rows in read_documents(file) for row in rows}


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "separated" in line]


@pytest.mark.parametrize(
    ("name", "delimiter", "encoding", "keys"),
    [
        ("a.csv", ";", "utf-8", {}),
        ("a.csv", "\t", "utf-8", {}),
        ("a.csv", "|", "utf-8-sig", {}),
        ("a.tsv", ",", "utf-8", {}),
        ("a.tsv", ";", "utf-8", {}),
        ("a.csv", "#", "utf-8", {"delimiter": "#"}),
        ("a.csv", ";", "utf-8", {"delimiter": ";"}),
        ("a.csv", ",", "cp1252", {"encoding": "cp1252"}),
        ("a.csv", ",", "utf-8-sig", {"encoding": "utf8"}),
        ("a.csv", "\t", "utf-16", {"encoding": "utf-16"}),
    ],
)
def test_a_table_has_the_same_rows_however_it_is_written(
    name: str,
    delimiter: str,
    encoding: str,
    keys: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = made(tmp_path / "usual", write(tmp_path / "usual.csv"))
    assert not said(capsys)
    assert "delimiters" not in usual["described"]
    file = write(tmp_path / name, delimiter, encoding)
    other = made(tmp_path / "other", file, **keys)
    assert {split: other[split] for split in SPLITS} == {split: usual[split] for split in SPLITS}
    sniffed = "delimiter" not in keys and delimiter != ","
    sniffed |= name == "a.tsv"
    expected = f"dataset other: values are separated by {json.dumps(delimiter)} in {file}, by the "
    assert [line.startswith(expected) for line in said(capsys)] == [True] * sniffed
    found = other["described"].get("delimiters", {})
    assert found == ({str(file): delimiter} if sniffed else {})
    proof = json.loads((tmp_path / "other/proof.json").read_text())
    assert all(one["holds"] for one in proof["comparisons"])


def test_a_column_with_a_separator_in_its_name_is_read_if_the_config_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["a;b", *(f"text {number}" for number in range(60))]))
    made(tmp_path / "out", file, format="text", columns={"text": "a;b"})
    assert not said(capsys)


def test_a_delimiter_that_the_header_does_not_show_is_advised(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for row, found in (
        ("a;b, c;d", 'expected prompt; set delimiter: ";", of source: files'),
        ("a;b;c", 'and leave none out, or set delimiter: ";"'),
    ):
        file.write_text(f"prompt;completion;size (m, s)\n{row}\n")
        with pytest.raises(UserError, match=found):
            made(tmp_path / "out", file)
    rows = "\n".join(f"question {number};answer;c" for number in range(60))
    file.write_text(f"prompt;completion;size (m, s)\n{rows}")
    made(tmp_path / "out", file, delimiter=";")


@pytest.mark.parametrize(
    ("encoding", "advice"),
    [("cp1252", "set encoding to that of the file, such as cp1252"), ("utf-16", "set encoding: u")],
)
def test_text_in_another_encoding_names_the_key(encoding: str, advice: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", encoding=encoding)
    with pytest.raises(UserError, match=rf"^{re.escape(str(file))}: invalid UTF-8.*; {advice}"):
        made(tmp_path / "out", file)
    made(tmp_path / "out", file, encoding=encoding)


@pytest.mark.parametrize("position", [0, 70_000])
def test_what_is_not_in_the_encoding_is_reported_by_its_place(
    position: int, tmp_path: Path
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"a" * position + b"\x81 b")
    with pytest.raises(UserError) as caught:
        made(tmp_path / "out", file, format="text", encoding="cp1252")
    assert str(caught.value) == (
        f"{file}: invalid cp1252 at byte {position}; set encoding to that of the file, or convert "
        "it to UTF-8"
    )


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_the_first_rows_are_read(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several parts, and with the bad ones."""
    monkeypatch.setattr("moray.tasks.language.sources.readers.PART_BYTES", 500)
    monkeypatch.setattr("moray.corpus.parts.PART_BYTES", 500)
    rows = [*ROWS[:10], ["bad", "", "0"], *ROWS[10:]]
    file = write(tmp_path / "a.csv", rows=rows)
    if ending != "csv":
        import pandas as pd

        table = pd.read_csv(file, dtype=str, keep_default_na=False)
        file = tmp_path / f"a.{ending}"
        if ending == "jsonl":
            table.to_json(file, orient="records", lines=True)
        else:
            table.to_parquet(file)
    keys = {"bad_rows": "drop", "max_bad_rows": 0.1}
    first = made(tmp_path / "first", file, max_rows=30, **keys)
    assert texts(tmp_path / "first") == {row[0] for row in ROWS[:29]}
    assert first["described"]["bad_rows"][0]["rows"] == 1
    proof = json.loads((tmp_path / "first/proof.json").read_text())
    assert all(one["holds"] for one in proof["comparisons"])
    whole = made(tmp_path / "whole", file, **keys)
    more = made(tmp_path / "more", file, max_rows=1000, **keys)
    assert {split: more[split] for split in SPLITS} == {split: whole[split] for split in SPLITS}


def test_the_first_rows_are_those_of_each_split(tmp_path: Path) -> None:
    files = {
        split: [str(write(tmp_path / f"{split}{part}.csv", rows=ROWS[part::2])) for part in (0, 1)]
        for split in ("train", "test")
    }
    # Other rows than in train.
    for part in (0, 1):
        write(tmp_path / f"test{part}.csv", rows=[[f"t {a}", b, c] for a, b, c in ROWS[part::2]])
    section = {
        "source": "files",
        "path": files,
        "format": "prompt-completion",
        "validation_share": 0,
        "max_rows": 35,
    }
    download(tmp_path / "out", section, files)
    order = [row[0] for part in (0, 1) for row in ROWS[part::2]][:35]
    assert texts(tmp_path / "out") == {*order, *(f"t {text}" for text in order)}
