"""Rows have the tokens of the tokenizer's own call, and labels by the model's order."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classified import DECODERS, ENCODERS, degree, opinions, prepare, things, with_labels
from resumed import check_resumption, in_small_groups
from transformers import AutoTokenizer

from moray.corpus.dataset import read_documents
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.rows.store import StoredRows
from moray.tasks.classification.tokenize_labelled import tokenize_labelled


def documents_of(folder: Path, split: str = "train") -> list[Any]:
    return list(chain.from_iterable(read_documents(folder / f"dataset/{split}.parquet")))


def test_a_row_is_a_text_cut_to_its_size(tmp_path: Path, capsys: Any) -> None:
    rows = opinions(60)
    for number, row in enumerate(rows):
        if number % 2:
            row["text_pair"] = " ".join(["play"] * (number % 9))
    folder = prepare(tmp_path, rows, ENCODERS["BERT"](), size=10)
    tokenizer, cut = AutoTokenizer.from_pretrained(folder / "model"), 0
    for split in ("train", "validation", "test"):
        stored = StoredRows(folder / "labelled", split).rows
        documents = documents_of(folder, split)
        assert len(stored) == len(documents)
        for row, one in zip(stored, documents, strict=True):
            texts = [one["text"]] + ([one["text_pair"]] if one["text_pair"] is not None else [])
            expected = tokenizer(*texts, truncation=True, max_length=10)
            assert row["tokens"][: row["length"]].tolist() == expected["input_ids"]
            assert row["types"][: row["length"]].tolist() == expected["token_type_ids"]
            assert set(row["tokens"][row["length"] :]) <= {tokenizer.pad_token_id}
            cut += len(tokenizer(*texts)["input_ids"]) > 10
    manifest = read_manifest(folder / "labelled")
    assert sum(part["cut_documents"] for part in manifest["splits"].values()) == cut > 0
    assert f"60 texts of 2 classes, {cut} of them cut to 10 tokens" in capsys.readouterr().err


def test_labels_are_numbers_of_classes_ones_or_values(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "one", opinions(60), ENCODERS["BERT"]())
    labels = StoredRows(folder / "labelled", "train").rows["label"]
    assert [str(label) for label in labels] == [one["label"] for one in documents_of(folder)]
    assert read_manifest(folder / "labelled")["prior"] == np.bincount(labels).tolist()
    folder = prepare(tmp_path / "two", with_labels(things, 60), ENCODERS["BERT"]())
    labels = StoredRows(folder / "labelled", "train").rows["label"]
    for label, one in zip(labels, documents_of(folder), strict=True):
        named = json.loads(one["label"])
        assert label.tolist() == [float(name in named) for name in ("film", "play")]
    assert read_manifest(folder / "labelled")["prior"] == labels.sum(0).tolist()
    folder = prepare(tmp_path / "three", with_labels(degree, 60), ENCODERS["BERT"]())
    labels = StoredRows(folder / "labelled", "train").rows["label"]
    assert labels.tolist() == [float(one["label"]) for one in documents_of(folder)]
    assert read_manifest(folder / "labelled")["prior"] == pytest.approx(labels.mean())


def test_only_models_that_tell_texts_apart_have_their_types(tmp_path: Path) -> None:
    folder = prepare(tmp_path, opinions(60), DECODERS["Llama"]())
    assert "types" not in (StoredRows(folder / "labelled", "train").rows.dtype.names or ())


@pytest.mark.parametrize(("name", "longest"), [("BERT", 20), ("RoBERTa", 19)])
def test_rows_that_are_too_long_for_a_model_are_refused(
    name: str, longest: int, tmp_path: Path
) -> None:
    """RoBERTa's positions begin behind that of padding."""
    folder = prepare(tmp_path, opinions(60), ENCODERS[name](), size=longest)
    cfg = {"block_size": longest + 1, "format": "classification"}
    with pytest.raises(UserError, match=rf"^data\.block_size: makes.*expected at most {longest}"):
        tokenize_labelled(folder / "dataset", folder / "model", folder / "other", cfg)


def test_a_label_that_the_model_does_not_have_is_named(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "a", opinions(60), ENCODERS["BERT"]())
    rows = [{**row, "label": f"of {row['label']}"} for row in opinions(60)]
    other = prepare(tmp_path / "b", rows, ENCODERS["BERT"]())
    cfg = {"block_size": 16, "format": "classification"}
    with pytest.raises(UserError, match=r"^datasets\.dataset: got label of \d, which isn't"):
        tokenize_labelled(other / "dataset", folder / "model", tmp_path / "out", cfg)


def test_a_store_is_the_same_if_the_stage_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepare(tmp_path, opinions(60), ENCODERS["BERT"](), size=8)
    dataset = in_small_groups(folder / "dataset", tmp_path / "groups", 12)
    cfg = {"block_size": 8, "format": "classification"}
    check_resumption(
        lambda store: tokenize_labelled(dataset, folder / "model", store, cfg), tmp_path, capsys
    )
