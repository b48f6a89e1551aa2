"""Files that people hand in as data: they are read as plain data, or refused."""

import gzip
import json
import pickle
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from moray.corpus import hub
from moray.corpus.dataset import SPLITS, read_documents
from moray.errors import UserError
from moray.stages.download import download

TEXTS = [f"text {number}" for number in range(40)]


def take(file: Path, output: Path) -> list[str]:
    """The texts that a user's `source: files` takes from a file."""
    cfg = {"source": "files", "path": str(file), "test_share": 0.2}
    download(output, cfg, {"train": [str(file)]})
    return sorted(
        document["text"]
        for split in SPLITS
        for documents in read_documents(output / f"{split}.parquet")
        for document in documents
    )


def refusal(file: Path, output: Path) -> str:
    with pytest.raises(UserError) as caught:
        pytest.fail(f"{file} is read as {take(file, output)}")
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(str(file))
    return line


def numpy_pickle(trap: object, file: Path) -> None:
    # By a name, it would add an ending.
    with file.open("wb") as stream:
        np.save(stream, np.array([trap], dtype=object), allow_pickle=True)


WRITERS: dict[str, Callable[[object, Path], object]] = {
    "pickle": lambda trap, file: file.write_bytes(pickle.dumps(trap)),
    "pickle in ASCII": lambda trap, file: file.write_bytes(pickle.dumps(trap, protocol=0)),
    "pickle, compressed": lambda trap, file: file.write_bytes(gzip.compress(pickle.dumps(trap))),
    "torch": torch.save,
    "numpy": numpy_pickle,
}


def test_files_of_pickles_are_refused_by_their_ending(
    tmp_path: Path, output: Path, trap: object, canary: Path
) -> None:
    endings = [".pkl", ".pickle", ".pkl.gz", ".pt", ".bin", ".npy", ".npz", ".joblib", ".arrow"]
    for ending, written in product(endings, WRITERS):
        file = tmp_path / f"{written}{ending}"
        WRITERS[written](trap, file)
        assert "got the extension" in refusal(file, output)
        assert not canary.exists(), file


def test_pickles_under_the_ending_of_something_else_are_refused(
    tmp_path: Path, output: Path, trap: object, canary: Path
) -> None:
    endings = [".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".csv.gz", ".json.zst"]
    for ending, written in product(endings, WRITERS):
        file = tmp_path / f"{written}{ending}"
        WRITERS[written](trap, file)
        if ending.endswith(".gz") and "compressed" not in written:
            file.write_bytes(gzip.compress(file.read_bytes()))
        assert refusal(file, output)
        assert not canary.exists(), file


def test_a_pickle_under_the_ending_of_text_is_text(
    tmp_path: Path, output: Path, trap: object, canary: Path
) -> None:
    file = tmp_path / "data.txt"
    WRITERS["pickle in ASCII"](trap, file)
    cfg = {"source": "files", "path": str(file), "split_by": "tail", "test_share": 0.3}
    download(output, cfg, {"train": [str(file)]})
    (documents,) = read_documents(output / "train.parquet")
    assert file.read_text().startswith(documents[0]["text"])
    assert not canary.exists()


def marked(keys: Mapping[str, object], of_field: bool) -> pa.Table:
    """A table of texts that says more of itself, or of its column."""
    field = pa.field("text", pa.string(), metadata=keys if of_field else None)
    return pa.table({"text": TEXTS}, pa.schema([field], metadata=None if of_field else keys))


def of_type(name: str, trap: object, file: Path) -> Path:
    keys = {"ARROW:extension:name": name, "ARROW:extension:metadata": pickle.dumps(trap)}
    pq.write_table(marked(keys, of_field=True), file)
    return file


@pytest.mark.parametrize("name", ["arrow.py_extension_type", "owner.unknown"])
def test_the_extension_type_of_a_column_is_not_unpickled(
    name: str, tmp_path: Path, output: Path, trap: object, canary: Path
) -> None:
    assert take(of_type(name, trap, tmp_path / "data.parquet"), output) == sorted(TEXTS)
    assert not canary.exists()


def test_an_extension_type_that_is_registered_is_not_unpickled_either(
    tmp_path: Path, output: Path, trap: object, canary: Path
) -> None:
    # pandas registers its types when it first reads or writes Parquet, and expects JSON.
    pd.DataFrame({"text": TEXTS}).to_parquet(tmp_path / "registered.parquet")
    file = of_type("pandas.period", trap, tmp_path / "data.parquet")
    with pytest.raises(UserError, match="can't read the file"):
        take(file, output)
    assert not canary.exists()


FEATURES: list[Any] = [
    {"text": {"_type": "os.system", "command": "touch canary"}},
    {"text": {"_type": "deepcopy", "x": 1}},
    {"text": {"_type": "Value", "dtype": "__import__('os').mknod('canary')"}},
    {"text": {"_type": "Features"}},
    "__import__('os').mknod('canary')",
]


@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_what_a_table_says_of_its_features_is_not_run(
    features: Any, tmp_path: Path, output: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Hugging Face hub's library makes types of it."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    keys = {"huggingface": json.dumps({"info": {"features": features}}), "pandas": "{}"}
    (tmp_path / "owner").mkdir()
    file = tmp_path / "owner/train.parquet"
    pq.write_table(marked(keys, of_field=False), file)
    assert take(file, output) == sorted(TEXTS)
    with pytest.raises(UserError) as caught:
        hub.load(str(tmp_path / "owner"), None, None, None, "train")
    assert "\n" not in str(caught.value)
    assert not canary.exists()


@pytest.mark.parametrize("name", ["train.pkl", "train.pt", "train.npy"])
def test_a_repository_of_pickles_has_no_data(
    name: str, tmp_path: Path, trap: object, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "owner").mkdir()
    WRITERS["pickle"](trap, tmp_path / "owner" / name)
    with pytest.raises(UserError, match="data files found"):
        hub.load(str(tmp_path / "owner"), None, None, None, "train")
    assert not canary.exists()


@pytest.mark.parametrize("place", ["{outside}", "../outside.jsonl", "../outs*.jsonl", "{web}"])
def test_the_card_of_a_repository_reaches_no_file_outside_of_it(
    place: str, tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could have a user's own files trained, and published with the model."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "outside.jsonl").write_text('{"text": "secret"}\n')
    named = place.format(outside=tmp_path / "outside.jsonl", web=f"{web}/outside.jsonl")
    folder = tmp_path / "owner"
    folder.mkdir()
    card = f"---\nconfigs:\n- config_name: default\n  data_files: {named}\n---\n"
    (folder / "README.md").write_text(card)
    with pytest.raises(UserError) as caught:
        hub.load(str(folder), None, None, None, "train")
    assert str(caught.value).startswith(f"{folder}: the dataset card refers to ")
    assert "secret" not in str(caught.value)
