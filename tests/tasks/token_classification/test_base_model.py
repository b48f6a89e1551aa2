"""The output layer of a base model follows from the tags of its dataset."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from classified import DECODERS, ENCODERS, opinions, write_classifier
from classified import prepare as prepare_texts
from safetensors.torch import load_file
from tagged import TAGS, prepare, prepare_model, sentences
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    RobertaTokenizer,
)

from moray.config.schema.base import result_keys
from moray.config.schema.models import ScratchModel
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.stages.base_model import base_model
from moray.tasks.classification.classifier import load


def changed(folder: Path) -> set[str]:
    """The weights of `model` that aren't those of `given`."""
    given, made = (load_file(folder / name / "model.safetensors") for name in ("given", "model"))
    return {name for name in made if name not in given or not torch.equal(given[name], made[name])}


def config(folder: Path) -> Any:
    return json.loads((folder / "model/config.json").read_text())


def test_other_tags_get_an_output_layer(tmp_path: Path) -> None:
    folder = prepare(tmp_path, sentences(60), ENCODERS["BERT"]())
    assert changed(folder) == {"classifier.weight", "classifier.bias"}
    assert read_manifest(folder / "model")["new_head"]
    assert list(config(folder)["id2label"].values()) == [*TAGS]
    assert config(folder)["architectures"] == ["BertForTokenClassification"]
    model = AutoModelForTokenClassification.from_pretrained(folder / "model")
    assert model.classifier.out_features == len(TAGS)


def test_a_model_of_these_tags_keeps_its_output_layer_and_their_order(tmp_path: Path) -> None:
    rows = [
        {**row, "tags": ["yes" if tag == "O" else "no" for tag in row["tags"]]}
        for row in sentences(60)
    ]
    folder = prepare(tmp_path, rows, ENCODERS["BERT"]())
    assert changed(folder) == set()
    # A classifier of whole texts has an output layer that means something else.
    write_classifier(folder / "given", ENCODERS["BERT"]())
    prepare_model(folder)
    assert "classifier.weight" in changed(folder)
    assert read_manifest(folder / "model")["new_head"]


def test_a_tagger_becomes_a_classifier_of_texts_with_a_new_output_layer(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "tagged", sentences(60), ENCODERS["BERT"]())
    other = prepare_texts(tmp_path / "texts", opinions(60), ENCODERS["BERT"]())
    cfg = {"source": "path", "path": str(folder / "given"), "classes_of": "dataset", "seed": 0}
    base_model(other / "model", cfg, other / "dataset", modality="labelled text")
    assert config(other)["architectures"] == ["BertForSequenceClassification"]
    assert config(other)["problem_type"] == "single_label_classification"
    assert read_manifest(other / "model")["new_head"]


def test_a_model_from_scratch_tags_words(tmp_path: Path) -> None:
    folder = prepare(tmp_path, sentences(60), ENCODERS["BERT"]())
    section = ScratchModel(
        source="scratch",
        classes_of="dataset",
        hidden_size=32,
        num_attention_heads=2,
        tokenizer={"train_on": "dataset", "vocab_size": 300},
    )
    base_model(folder / "llama", result_keys(section), folder / "dataset", modality="labelled text")
    model = load(folder / "llama")
    assert type(model).__name__ == "LlamaForTokenClassification"
    assert model.score.out_features == len(TAGS)


def test_a_byte_level_tokenizer_takes_words_as_transformers_needs_it(tmp_path: Path) -> None:
    folder = prepare(tmp_path, sentences(60), ENCODERS["RoBERTa"]())
    special = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    RobertaTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder / "given")
    prepare_model(folder)
    given, made = (AutoTokenizer.from_pretrained(folder / name) for name in ("given", "model"))
    text = made("ada saw")["input_ids"]
    assert made(["ada", "saw"], is_split_into_words=True)["input_ids"] == text
    assert given(["ada", "saw"], is_split_into_words=True)["input_ids"] != text


def test_an_architecture_that_does_not_tag_words_is_refused(tmp_path: Path) -> None:
    folder = prepare(tmp_path, sentences(60), ENCODERS["BERT"]())
    write_classifier(folder / "given", DECODERS["Gemma 3"]())
    with pytest.raises(UserError, match=r"can't load a model that classifies texts .*Gemma3Text"):
        prepare_model(folder)
