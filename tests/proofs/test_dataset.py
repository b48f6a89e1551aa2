"""Faults planted into a download, and the comparison with plain readers that finds them."""

import csv
import gzip
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from moray.corpus.dataset import SPLITS, Document, documents_of
from moray.corpus.split import Divided, by_hash
from moray.errors import UserError
from moray.proofs.comparison import Comparison, read_proof
from moray.proofs.dataset import compare_dataset
from moray.stages import download as stage
from moray.stages.download import download

ROWS = [{"text": f"row {number}, é\n"} for number in range(60)]


def as_jsonl(folder: Path) -> Path:
    path = folder / "rows.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n\n" for row in ROWS)
    return path


def as_csv(folder: Path) -> Path:
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text"])
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def as_parquet(folder: Path) -> Path:
    path = folder / "rows.parquet"
    pd.DataFrame(ROWS).to_parquet(path)
    return path


def as_json(folder: Path) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps(ROWS, indent=1))
    return path


def as_json_lines(folder: Path) -> Path:
    path = folder / "rows.json"
    path.write_text("\n" + "".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def with_rows_of_empty_values(folder: Path) -> Path:
    path = folder / "rows.csv"
    lines = [f"row {number},x" for number in range(58)]
    path.write_text("\n".join(["text,other", *lines, ",", '"",', "", ""]))
    return path


def cfg(path: Path, **more: Any) -> dict[str, Any]:
    shares = {"validation_share": 0.2, "test_share": 0.2}
    return {"source": "files", "path": [str(path)], "format": "text", **shares, **more}


@pytest.mark.parametrize(
    "write",
    [as_jsonl, as_csv, as_parquet, as_json, as_json_lines, with_rows_of_empty_values],
)
def test_all_rows_of_a_file_are_accounted_for(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = write(tmp_path)
    download(tmp_path / "out", cfg(path), {"train": [str(path)]})
    found = {one["what"]: (one["here"], one["plain"]) for one in read_proof(tmp_path / "out")}
    assert found["rows of the files"] == (60, 60)
    assert found["rows that are in two splits"] == (0, 0)


Rows = Iterator[tuple[str, Document]]


def without_third(rows: Rows) -> Rows:
    return ((split, row) for number, (split, row) in enumerate(rows) if number != 2)


def with_copies(rows: Rows) -> Rows:
    for split, row in rows:
        yield split, row
        if split == "test":
            yield "train", row


def with_numbers_apart(rows: Rows) -> Rows:
    for number, (split, row) in enumerate(rows):
        group = str(number % 7) if split == "train" else f"{number % 7}.0"
        yield split, row | Document(group=group)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (without_third, "rows of the files: 59, pyarrow .*: 60"),
        (with_copies, r"rows of the files|rows that are in two splits: 0, pyarrow .*: \d"),
        (with_numbers_apart, r"groups that are in two splits: 0, pyarrow .*: [5-7]"),
    ],
    ids=["lost", "copied", "1 and 1.0"],
)
def test_a_planted_fault_leaves_no_dataset(
    change: Callable[[Rows], Rows], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def changed(*given: Any, **keys: Any) -> Divided:
        for table, splits in by_hash(*given, **keys):
            rows = zip((SPLITS[n] for n in splits), documents_of(table), strict=True)
            kept = [*change(iter(rows))]
            numbers = np.array([SPLITS.index(split) for split, _ in kept], np.uint8)
            yield pa.Table.from_pylist([row for _, row in kept], table.schema), numbers

    monkeypatch.setattr(stage, "by_hash", changed)
    path = as_jsonl(tmp_path)
    columns = {"columns": {"group": "text"}} if change is with_numbers_apart else {}
    with pytest.raises(UserError, match=what):
        download(tmp_path / "out", cfg(path, **columns), {"train": [str(path)]})
    assert not (tmp_path / "out").exists()


def test_texts_that_differ_in_white_space_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    texts = [f"row {number}{end}" for number in range(60) for end in ("", " ")]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    download(tmp_path / "out", cfg(path), {"train": [str(path)]})
    assert "rows that are in two splits but for white space: 0, pyarrow" in capsys.readouterr().err


def test_many_small_rows_are_compared_in_little_memory_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashes take 16 bytes a row, and some times that while they are sorted."""
    count = 150_000
    file = tmp_path / "rows.parquet"
    pd.DataFrame({"text": [str(number) for number in range(count)]}).to_parquet(file)
    download(tmp_path / "out", cfg(file), {"train": [str(file)]}, proofs="off")
    described = json.loads((tmp_path / "out/dataset.json").read_text())

    def compared() -> list[Comparison]:
        given = tmp_path / "out", described, {"train": [str(file)]}
        return [*compare_dataset(*given, seconds=1, by_rows=True, written={}, apart=True)]

    # What is imported at first use.
    compared()
    tracemalloc.start()
    results = compared()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150 * count
    assert [one.skipped for one in results] == [None] * len(results)
    monkeypatch.setattr("moray.proofs.dataset._ROWS_PER_SECOND", count / 4)
    rows, splits = compared()
    assert rows.skipped is None
    assert splits.skipped == "reading the rows again takes too long"
