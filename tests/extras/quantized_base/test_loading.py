"""Which models are loaded in 4 and 8 bits, and what their weights count as."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from architectures import HYBRID, PACKED, UNPACKED, build
from peft import PeftModel

from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.adapter import add_adapter
from moray.model.load import load_model
from moray.model.quantization import Bits, Quantization
from moray.train.trained import trained_of


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_missing_weights_and_those_of_other_shapes_are_named(
    bits: Bits, model_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())

    def load_with(**values: Any) -> None:
        (folder / "config.json").write_text(json.dumps(config | values))
        load_model(folder, quantization=Quantization(bits))

    with pytest.raises(UserError, match=r"2 weights have other shapes than config\.json says"):
        load_with(vocab_size=310)
    with pytest.raises(UserError, match=r"weights of a llama model are missing, e\.g\. model\."):
        load_with(num_hidden_layers=3)


def test_experts_in_8_bits_are_not_taken_for_quantized(tmp_path: Path) -> None:
    config = hf.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    build(config).save_pretrained(tmp_path)
    # Gate and up projection, and down projection, of four experts in two layers.
    weights = 2 * 4 * 3 * 32 * 48
    expected = rf"8bit doesn't quantize the experts of a mixtral model \({weights:,} weights\)"
    with pytest.raises(UserError, match=expected):
        load_model(tmp_path, quantization=Quantization("8bit"))
    load_model(tmp_path, quantization=Quantization("4bit"))


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_gates_of_three_dimensions_are_not_taken_for_experts(bits: Bits, tmp_path: Path) -> None:
    build(HYBRID["RecurrentGemma"]()).save_pretrained(tmp_path)
    load_model(tmp_path, quantization=Quantization(bits))


@pytest.mark.parametrize(("architecture", "bits"), [("Gemma 3n", "4bit"), ("Mamba", "8bit")])
def test_layers_whose_weights_are_read_directly_are_not_quantized(
    architecture: str, bits: Bits, tmp_path: Path
) -> None:
    build((PACKED | UNPACKED)[architecture]()).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=rf"{bits} doesn't work with .* models, which compute with"):
        load_model(tmp_path, quantization=Quantization(bits))


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_quantized_weights_count_as_what_they_stand_for(bits: Bits, model_folder: Path) -> None:
    adapter = Adapter(rank=2, quantize_base=bits)
    whole = load_model(model_folder)
    model = load_model(model_folder, quantization=Quantization(bits))
    add_adapter(whole, adapter, seed=0)
    add_adapter(model, adapter, seed=0)
    found, expected = trained_of(model, adapter), trained_of(whole, adapter)
    assert (found.parameters, found.layers) == (expected.parameters, expected.layers)
    scales = sum(len(value) for name, value in model.named_parameters() if name.endswith("scale"))
    assert found.total == expected.total + scales
    by_peft = PeftModel.get_nb_trainable_parameters(model)
    assert bits == "8bit" or (found.parameters, found.total) == by_peft
