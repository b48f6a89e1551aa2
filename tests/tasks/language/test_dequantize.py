"""Base models whose weights are quantized."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from moray.errors import UserError
from moray.model.load import load_model
from moray.stages.base_model import base_model

BLOCK = 128


@pytest.fixture
def plain(tmp_path: Path, model_folder: Path) -> Path:
    """A model in bf16 whose matrices consist of whole blocks, and its tokenizer."""
    folder = Path(shutil.copytree(model_folder, tmp_path / "plain"))
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=2 * BLOCK,
        intermediate_size=3 * BLOCK,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=0,
        bos_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


def to_fp8(folder: Path) -> dict[str, torch.Tensor]:
    """Quantize a folder by blocks, as DeepSeek-V3 is published; returns what its weights stand for.

    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.
    """
    stored, meant = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = meant[name] = weight
        if "_proj" not in name:
            continue
        rows, columns = weight.shape
        # The last block of rows may be a part.
        whole = torch.nn.functional.pad(weight.float(), (0, 0, 0, -rows % BLOCK))
        blocks = whole.reshape(-1, BLOCK, columns // BLOCK, BLOCK)
        scale = blocks.abs().amax((1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        values = (blocks / scale).to(torch.float8_e4m3fn)
        stored[name] = values.reshape(-1, columns)[:rows].contiguous()
        stored[f"{name}_scale_inv"] = scale[:, 0, :, 0].contiguous()
        meant[name] = (values.float() * scale).reshape(-1, columns)[:rows].bfloat16().contiguous()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    describe(folder, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]})
    return meant


def describe(folder: Path, quantization: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))


# A published DeepSeek-V3 has 4.5 blocks of rows in one of its projections.
@pytest.mark.parametrize("rows", [BLOCK, 3 * BLOCK // 2])
def test_weights_in_fp8_are_what_they_stand_for(rows: int, plain: Path, tmp_path: Path) -> None:
    config = LlamaConfig.from_pretrained(plain, head_dim=rows, num_key_value_heads=1)
    LlamaForCausalLM(config).bfloat16().save_pretrained(plain)
    expected = to_fp8(plain)
    base_model(tmp_path / "out", {"source": "path", "path": str(plain)})
    stored = load_file(tmp_path / "out/model.safetensors")
    assert stored.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(stored[name], weight), name
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "bfloat16"


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_bitsandbytes_are_what_it_computes_with(
    plain: Path, tmp_path: Path, bits: int
) -> None:
    settings = BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    quantized = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=settings, dtype=torch.bfloat16
    )
    quantized.save_pretrained(plain)
    base_model(tmp_path / "out", {"source": "path", "path": str(plain)})
    tokens = torch.arange(1, 33).unsqueeze(0)
    with torch.no_grad():
        expected = quantized(tokens).logits.float()
        logits = load_model(tmp_path / "out", torch.bfloat16)(tokens).logits.float()
    # Products in bf16, and in 8 bits for some columns, round differently.
    assert torch.corrcoef(torch.stack([logits.flatten(), expected.flatten()]))[0, 1] > 0.999


def test_other_methods_are_refused(plain: Path, tmp_path: Path) -> None:
    describe(plain, {"quant_method": "gptq", "bits": 4})
    with pytest.raises(UserError) as caught:
        base_model(tmp_path / "out", {"source": "path", "path": str(plain)})
    assert str(caught.value) == (
        "models.out: the weights are quantized by gptq, expected plain ones, or one of fp8, mxfp4, "
        "bitsandbytes, which are dequantized; use the model before quantization; "
        "adapter.quantize_base: 4bit quantizes it when it is loaded"
    )


@pytest.mark.parametrize(
    ("layers", "problem"), [(3, "9 weights of a llama model are missing"), (1, "aren't part of it")]
)
def test_quantized_weights_are_neither_made_up_nor_left_out(
    layers: int, problem: str, plain: Path, tmp_path: Path
) -> None:
    to_fp8(plain)
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    with pytest.raises(UserError, match=problem):
        base_model(tmp_path / "out", {"source": "path", "path": str(plain)})
