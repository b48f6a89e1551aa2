"""The output layer of a base model follows from the labels of its dataset."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from classified import (
    DECODERS,
    ENCODERS,
    WORDS,
    degree,
    opinions,
    prepare,
    prepare_model,
    things,
    with_labels,
    write_classifier,
    write_tokenizer,
)
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from moray.config.schema.base import result_keys
from moray.config.schema.models import ScratchModel
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.stages.base_model import base_model
from moray.tasks.classification.classifier import load


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def changed(folder: Path) -> set[str]:
    """The weights of `model` that aren't those of `given`."""
    given, made = weights(folder / "given"), weights(folder / "model")
    return {name for name in made if name not in given or not torch.equal(given[name], made[name])}


def config(folder: Path) -> Any:
    return json.loads((folder / "model/config.json").read_text())


@pytest.mark.parametrize("name", ["BERT", "DistilBERT", "Llama"])
def test_other_classes_get_an_output_layer_that_follows_from_the_seed(
    name: str, tmp_path: Path
) -> None:
    folder = prepare(tmp_path, opinions(60), (ENCODERS | DECODERS)[name]())
    layers = {layer.partition(".")[0] for layer in changed(folder)}
    assert layers
    assert layers <= {"classifier", "pre_classifier", "score"}
    assert read_manifest(folder / "model")["new_head"]
    first = weights(folder / "model")
    prepare_model(folder)
    assert all(torch.equal(value, first[key]) for key, value in weights(folder / "model").items())
    prepare_model(folder, seed=1)
    assert not all(
        torch.equal(value, first[key]) for key, value in weights(folder / "model").items()
    )


def test_a_model_of_these_classes_keeps_its_output_layer_and_their_order(tmp_path: Path) -> None:
    rows = [{**row, "label": ["yes", "no"][row["label"]]} for row in opinions(60)]
    folder = prepare(tmp_path, rows, ENCODERS["BERT"]())
    assert changed(folder) == set()
    assert config(folder)["id2label"] == {"0": "no", "1": "yes"}
    assert "new_head" not in read_manifest(folder / "model")
    manifest = read_manifest(folder / "labelled")
    assert manifest["label_names"] == ["no", "yes"]


def test_names_that_transformers_made_up_are_numbers(tmp_path: Path) -> None:
    folder = prepare(tmp_path, opinions(60), ENCODERS["BERT"]())
    given = json.loads((folder / "given/config.json").read_text())
    del given["id2label"]
    (folder / "given/config.json").write_text(json.dumps(given))
    prepare_model(folder)
    assert changed(folder) == set()
    assert config(folder)["id2label"] == {"0": "0", "1": "1"}


@pytest.mark.parametrize(
    ("label", "problem", "outputs"),
    [(things, "multi_label_classification", 2), (degree, "regression", 1)],
)
def test_the_problem_is_in_the_config(
    label: Any, problem: str, outputs: int, tmp_path: Path
) -> None:
    folder = prepare(tmp_path, with_labels(label, 60), ENCODERS["BERT"]())
    assert config(folder)["problem_type"] == problem
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert model.classifier.out_features == outputs


def test_a_language_model_gets_a_head_and_a_token_to_pad_with(tmp_path: Path) -> None:
    folder = prepare(tmp_path, opinions(60), DECODERS["Llama"]())
    settings = DECODERS["Llama"]()
    settings.pad_token_id = None
    torch.manual_seed(2)
    AutoModelForCausalLM.from_config(settings).save_pretrained(folder / "given")
    file = folder / "given/tokenizer_config.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["eos_token"] = tokenizer.pop("pad_token")
    file.write_text(json.dumps(tokenizer))
    prepare_model(folder)
    assert config(folder)["pad_token_id"] == WORDS.index("[PAD]")
    assert read_manifest(folder / "model")["new_head"]
    assert changed(folder) == {"score.weight"}


def test_random_weights_take_only_the_config(tmp_path: Path) -> None:
    folder = prepare(tmp_path, opinions(60), ENCODERS["BERT"]())
    prepare_model(folder, random_weights=True)
    assert "bert.embeddings.word_embeddings.weight" in changed(folder)
    assert read_manifest(folder / "model")["new_head"]


def test_a_model_from_scratch_has_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    folder = prepare(tmp_path, opinions(60), ENCODERS["BERT"]())
    keys = {"source": "scratch", "classes_of": "dataset", "hidden_size": 32}
    section = ScratchModel(
        **keys, tokenizer={"train_on": "dataset", "vocab_size": 300}, num_attention_heads=2
    )
    base_model(folder / "llama", result_keys(section), folder / "dataset", modality="labelled text")
    assert load(folder / "llama").score.out_features == 2


def test_a_folder_without_the_body_of_its_model_is_refused(tmp_path: Path) -> None:
    folder = prepare(tmp_path, opinions(60), ENCODERS["BERT"]())
    given = AutoModelForSequenceClassification.from_pretrained(folder / "given")
    state = {key: value for key, value in given.state_dict().items() if "layer.1" not in key}
    given.save_pretrained(folder / "given", state_dict=state)
    with pytest.raises(UserError, match=r"^models\.model: weights are missing, e\.g\. bert\.enc"):
        prepare_model(folder)


def test_a_tokenizer_without_a_token_to_pad_with_is_refused(tmp_path: Path) -> None:
    folder = prepare(tmp_path, opinions(60), ENCODERS["BERT"]())
    write_classifier(folder / "given", ENCODERS["BERT"]())
    write_tokenizer(folder / "given")
    file = folder / "given/tokenizer_config.json"
    tokenizer = json.loads(file.read_text())
    for name in ("pad_token", "unk_token"):
        del tokenizer[name]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"^models\.model: its tokenizer has no token to pad"):
        prepare_model(folder)
