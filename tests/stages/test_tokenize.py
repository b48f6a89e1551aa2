"""From a dataset to its token store."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerFast

from moray.corpus.dataset import SPLITS, read_documents, write_dataset
from moray.corpus.document import Document
from moray.errors import UserError
from moray.provenance.manifest import damaged_files, read_manifest
from moray.stages.tokenize import tokenize
from moray.tokens.store import Segment, Split

CFG = {"block_size": 16, "format": "text"}


def rows_of(dataset: Path, split: str) -> list[Document]:
    return [row for batch in read_documents(dataset / f"{split}.parquet") for row in batch]


def test_each_split_holds_its_documents(
    tmp_path: Path, dataset: Path, model_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenize(dataset, model_folder, tmp_path / "out", CFG)
    manifest = read_manifest(tmp_path / "out")
    assert manifest["block_size"] == 16
    assert damaged_files(tmp_path / "out") == []
    for name in SPLITS:
        split, rows = Split(tmp_path / "out", name), rows_of(dataset, name)
        trained = [row.get("text", row.get("completion", "")) for row in rows]
        plain = {"add_special_tokens": False}
        count = sum(len(tokenizer(text, **plain)["input_ids"]) + 1 for text in trained)
        counts = manifest["splits"][name]
        assert counts["trained_tokens"] == count == split.mask.sum()
        assert counts["tokens"] == split.segments[:, Segment.LENGTH].sum()
        assert (counts["rows"], counts["segments"]) == (len(split), len(split.segments))
        assert split.segments[:, Segment.BYTES].sum() == sum(len(t.encode()) for t in trained)
        assert set(split.segments[:, Segment.DOCUMENT].tolist()) == set(range(len(rows)))


def test_documents_are_numbered_through_all_batches(
    tmp_path: Path, model_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    for name in SPLITS:
        rows = [{"text": str(number)} for number in range(2100 if name == "train" else 1)]
        pq.write_table(pa.Table.from_pylist(rows), dataset / f"{name}.parquet")
    tokenize(dataset, model_folder, tmp_path / "out", CFG)
    split = Split(tmp_path / "out", "train")
    for start, length, document, _ in split.segments[::50].tolist():
        tokens = split.tokens.reshape(-1)[start : start + length]
        assert tokenizer.decode(tokens[1:-1].tolist()) == str(document)


def test_the_same_dataset_makes_the_same_bytes(
    tmp_path: Path, dataset: Path, model_folder: Path
) -> None:
    for name in ("one", "other"):
        tokenize(dataset, model_folder, tmp_path / name, CFG)
    assert read_manifest(tmp_path / "one") == read_manifest(tmp_path / "other")


def test_an_empty_validation_split_is_fine(
    tmp_path: Path, dataset: Path, model_folder: Path
) -> None:
    copy = Path(shutil.copytree(dataset, tmp_path / "dataset"))
    table = pq.read_table(copy / "validation.parquet")
    pq.write_table(table.slice(0, 0), copy / "validation.parquet")
    tokenize(copy, model_folder, tmp_path / "out", CFG)
    assert len(Split(tmp_path / "out", "validation")) == 0


@pytest.mark.parametrize("split", ["train", "test"])
def test_with_nothing_to_train_on_there_is_no_store(
    tmp_path: Path, dataset: Path, model_folder: Path, split: str
) -> None:
    copy = Path(shutil.copytree(dataset, tmp_path / "dataset"))
    table = pq.read_table(copy / f"{split}.parquet")
    pq.write_table(table.slice(0, 0), copy / f"{split}.parquet")
    tokenize(dataset, model_folder, tmp_path / "out", CFG)
    with pytest.raises(UserError, match=rf"{split}\.parquet: got no token to train"):
        tokenize(copy, model_folder, tmp_path / "out", CFG)
    assert not (tmp_path / "out/manifest.json").exists()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moray.stages.tokenize", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_a_command_too(tmp_path: Path, model_folder: Path) -> None:
    dataset, out = tmp_path / "dataset", tmp_path / "out"
    write_dataset(dataset, iter((split, Document(text="x")) for split in SPLITS), "text", {})
    paths = ["--dataset", str(dataset), "--model", str(model_folder), "--output", str(out)]
    done = run(*paths, "--cfg", json.dumps(CFG))
    assert done.returncode == 0, done.stderr
    assert damaged_files(out) == []
    assert "tokens out: " in done.stderr


def test_the_command_explains_itself() -> None:
    done = run("--help")
    assert done.returncode == 0
    for option in ("--dataset", "--model", "--output", "--cfg"):
        assert option in done.stdout
