"""From a source to a dataset's folder."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moray.corpus.dataset import SPLITS, read_documents
from moray.errors import UserError
from moray.stages.download import download

SHARES = {"validation_share": 0.2, "test_share": 0.2}
FILES = {"source": "files", "format": "text", "split_by": "hash", **SHARES}


def read(folder: Path, column: str = "text") -> dict[str, list[str]]:
    return {
        split: [
            str(row[column])  # type: ignore[literal-required]
            for batch in read_documents(folder / f"{split}.parquet")
            for row in batch
        ]
        for split in SPLITS
    }


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of 50 rows, the first row in both."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        names = ["in both", *(f"{path.stem} {number} é" for number in range(49))]
        path.write_text("".join(json.dumps({"text": name}) + "\n" for name in names))
    return paths


def test_every_row_of_the_files_is_in_one_split(tmp_path: Path, files: list[Path]) -> None:
    download(tmp_path / "out", FILES, files)
    splits = read(tmp_path / "out")
    rows = [row for split in splits.values() for row in split]
    expected = [f"{name} {number} é" for name in "ab" for number in range(49)]
    assert sorted(row for row in rows if row != "in both") == sorted(expected)
    assert all(len(split) > 5 for split in splits.values())


def test_what_is_described_is_what_was_read(tmp_path: Path, files: list[Path]) -> None:
    download(tmp_path / "out", FILES, files)
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    assert described["source"] == "files"
    assert described["files"] == {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    counts = {split: len(rows) for split, rows in read(tmp_path / "out").items()}
    assert {split: facts["rows"] for split, facts in described["splits"].items()} == counts


def test_the_same_files_make_the_same_bytes(tmp_path: Path, files: list[Path]) -> None:
    for name in ("one", "other"):
        download(tmp_path / name, FILES, files)
    for name in ("dataset.json", *(f"{split}.parquet" for split in SPLITS)):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_the_tail_of_a_text_is_held_out_in_order(tmp_path: Path) -> None:
    text = "".join(f"{number:03}\n" for number in range(100))
    (tmp_path / "a.txt").write_text(text)
    download(tmp_path / "out", FILES | {"split_by": "tail"}, [tmp_path / "a.txt"])
    splits = read(tmp_path / "out")
    assert {split: "".join(parts) for split, parts in splits.items()} == {
        "train": text[:240],
        "validation": text[240:320],
        "test": text[320:],
    }


@pytest.mark.parametrize("format", ["text", "prompt-completion"])
def test_the_standard_library_is_split_by_module(
    tmp_path: Path, library: Callable[[dict[str, str]], None], format: str
) -> None:
    modules = {
        f"m{number}.py": "".join(
            f"def f{number}_{i}():\n    '''One.'''\n    return {i}\n\n\n" for i in range(3)
        )
        for number in range(40)
    }
    library(modules)
    cfg = {"source": "python-stdlib", "format": format, "python": "3.99", **SHARES}
    download(tmp_path / "out", cfg)
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    assert described["revision"] == "python 3.99"
    splits = read(tmp_path / "out", "text" if format == "text" else "prompt")
    if format == "text":
        assert sorted(row for split in splits.values() for row in split) == sorted(modules.values())
    else:
        owners = [{row.split("_")[0] for row in split} for split in splits.values()]
        assert sum(map(len, owners)) == len(set.union(*owners)) == 40
        assert sum(map(len, splits.values())) == 120


@pytest.mark.parametrize(
    ("name", "content", "changes"),
    [
        ("z.txt", b"\xff", {}),
        ("z.jsonl", b'{"body": "x"}\n', {}),
        ("z.txt", b"", {"split_by": "tail", "validation_share": 0, "test_share": 0.0001}),
    ],
)
def test_a_bad_input_leaves_no_description_behind(
    tmp_path: Path, files: list[Path], name: str, content: bytes, changes: dict[str, Any]
) -> None:
    download(tmp_path / "out", FILES, files)
    bad = tmp_path / name
    bad.write_bytes(content)
    with pytest.raises(UserError):
        download(tmp_path / "out", FILES | changes, [files[0], bad])
    assert not (tmp_path / "out/dataset.json").exists()
