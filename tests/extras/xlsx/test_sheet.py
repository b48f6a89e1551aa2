"""Spreadsheets of Excel as datasets."""

import csv
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook

from moray.config.extras import TABLES
from moray.corpus.dataset import SPLITS
from moray.errors import UserError
from moray.provenance.manifest import sha256_file
from moray.stages.download import download

ROWS: list[list[Any]] = [[f"question é {number}", f"answer, {number}"] for number in range(60)]


def write(file: Path, rows: list[list[Any]], *more: str) -> Path:
    workbook = Workbook()
    sheet = workbook.worksheets[0]
    for row in rows:
        sheet.append(row)
    for title in more:
        workbook.create_sheet(title).append(["of", "another", "sheet"])
    workbook.save(file)
    return file


def made(folder: Path, file: Path, **keys: Any) -> dict[str, str]:
    shares = {"validation_share": 0.2, "test_share": 0.2}
    section = {
        "source": "files",
        "path": str(file),
        "format": "prompt-completion",
        **shares,
        **keys,
    }
    download(folder, section, {"train": [str(file)]})
    return {split: sha256_file(folder / f"{split}.parquet") for split in SPLITS}


def test_a_spreadsheet_has_the_rows_that_it_has_as_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["prompt", "completion"], *ROWS, ["How many?", 42], ["How much?", 3.5]]
    with (tmp_path / "a.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(rows)
    usual = made(tmp_path / "usual", tmp_path / "a.csv")
    # Spreadsheets have empty rows and columns with a format.
    file = write(tmp_path / "a.xlsx", [*rows[:30], [None, "", None], *rows[30:], ["", None]])
    capsys.readouterr()
    assert made(tmp_path / "sheet", file) == usual
    assert "sheets" not in capsys.readouterr().err
    several = write(tmp_path / "b.xlsx", rows, "notes", "more")
    assert made(tmp_path / "several", several) == usual
    assert "dataset several: of 3 sheets, the first is read, Sheet\n" in capsys.readouterr().err


def test_bad_rows_have_the_numbers_that_the_spreadsheet_shows(tmp_path: Path) -> None:
    header: list[Any] = ["prompt", "completion"]
    file = write(tmp_path / "a.xlsx", [[], header, *ROWS, [], ["no answer", None], ["a", "b", "c"]])
    with pytest.raises(UserError, match=r"a\.xlsx, row 64: got nothing in column completion"):
        made(tmp_path / "out", file)
    file = write(tmp_path / "a.xlsx", [header, *ROWS, ["a", "b", datetime(2026, 1, 1)]])
    with pytest.raises(UserError, match=r"row 62: got a value without a name in column 3, expec"):
        made(tmp_path / "out", file)
    file = write(tmp_path / "a.xlsx", [["prompt", "prompt"], *ROWS])
    with pytest.raises(UserError, match=r"row 1: got the column prompt 2 times; rename or remove"):
        made(tmp_path / "out", file)


@pytest.mark.parametrize("content", [b"", b"prompt,completion\na,b\n", b"PK\x03\x04 broken"])
def test_what_is_no_spreadsheet_costs_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.xlsx: can't read the spreadsheet \(.*save it as \.xl"):
        made(tmp_path / "out", tmp_path / "a.xlsx")


def test_the_config_says_that_it_needs_a_library() -> None:
    from moray.config.schema.datasets import LocalFiles

    section = LocalFiles(source="files", path=["a.csv", "b/*.xlsx"])
    assert section.libraries == {"openpyxl": "openpyxl"}
    assert section.endings == {".csv", *TABLES}
