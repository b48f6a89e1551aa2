"""A dataset on disk."""

import hashlib
import json
from itertools import chain, cycle
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from moray.corpus.dataset import SPLITS, read_documents, write_dataset
from moray.corpus.document import Document
from moray.errors import UserError

TEXTS = [f"text {number} é🐍" * (number % 3) for number in range(2500)]


def test_rows_come_back_in_order_from_the_file_of_their_split(tmp_path: Path) -> None:
    rows = [Document(text=text, group="left out") for text in TEXTS]
    write_dataset(tmp_path, zip(cycle(SPLITS), rows, strict=False), "text", {})
    for place, split in enumerate(SPLITS):
        batches = list(read_documents(tmp_path / f"{split}.parquet"))
        assert list(chain(*batches)) == [{"text": text} for text in TEXTS[place::3]]


def test_batches_are_bounded(tmp_path: Path) -> None:
    rows = [*(("train", Document(text=text)) for text in TEXTS), ("test", Document(text="t"))]
    write_dataset(tmp_path, iter(rows), "text", {})
    sizes = [len(batch) for batch in read_documents(tmp_path / "train.parquet")]
    assert sum(sizes) == len(TEXTS)
    assert max(sizes) <= 1000


def test_pairs_come_back(tmp_path: Path) -> None:
    row = Document(prompt="é", completion="")
    write_dataset(tmp_path, iter([("train", row), ("test", row)]), "prompt-completion", {})
    for split, expected in (("train", [row]), ("validation", []), ("test", [row])):
        assert list(chain(*read_documents(tmp_path / f"{split}.parquet"))) == expected


def test_the_description_says_what_the_files_hold(tmp_path: Path) -> None:
    rows = [Document(prompt=text, completion=f"{text}!") for text in TEXTS[:50]]
    returned = write_dataset(
        tmp_path,
        zip(cycle(SPLITS), rows, strict=False),
        "prompt-completion",
        {"source": "here", "revision": "1"},
    )
    described = json.loads((tmp_path / "dataset.json").read_text())
    assert described == returned
    assert described["source"] == "here"
    assert described["revision"] == "1"
    assert described["format"] == "prompt-completion"
    assert list(described["splits"]) == list(SPLITS)
    for split, facts in described["splits"].items():
        path = tmp_path / f"{split}.parquet"
        table = pq.read_table(path).to_pylist()
        size = sum(len(value.encode()) for row in table for value in row.values())
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        assert facts == {"rows": len(table), "bytes": size, "sha256": sha256}


@pytest.mark.parametrize(("empty", "filled"), [("train", "test"), ("test", "train")])
def test_without_rows_to_train_or_to_test_on_there_is_no_dataset(
    tmp_path: Path, empty: str, filled: str
) -> None:
    ok = [("train", Document(text="a")), ("test", Document(text="b"))]
    write_dataset(tmp_path, iter(ok), "text", {})
    rows = [(filled, Document(text="a")), ("validation", Document(text="b"))]
    with pytest.raises(UserError, match=rf"{empty}\.parquet: got no rows out of 2"):
        write_dataset(tmp_path, iter(rows), "text", {})
    assert not (tmp_path / "dataset.json").exists()
