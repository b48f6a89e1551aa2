"""Bases in 4 and 8 bits, before they are sharded."""

from pathlib import Path

import pytest
import torch
import transformers as hf
from architectures import PACKED, build

from moray.model.load import empty_model, load_model
from moray.model.quantization import Bits, Quantization, quantize_empty, to_bytes

SMALL = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
CONFIGS = {
    "biases": hf.Qwen2Config(hidden_size=32, intermediate_size=72, **LAYERS, **SMALL),
    # Its layers keep the transpose of their weights.
    "Conv1D": hf.GPT2Config(n_embd=36, n_layer=2, n_head=2, **SMALL),
    # Its last layer isn't the output embedding, which is tied.
    "images": PACKED["Gemma 4 with images"](),
}


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    build(CONFIGS[request.param]).save_pretrained(tmp_path)
    return tmp_path


def described(model: hf.PreTrainedModel) -> dict[str, object]:
    """The type of each module, and the type and shape of each parameter."""
    modules = {name: type(module) for name, module in model.named_modules()}
    return modules | {
        f"{name}:": (value.dtype, value.shape) for name, value in model.named_parameters()
    }


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_bytes_compute_the_same_and_an_empty_model_is_like_them(
    dtype: torch.dtype, bits: Bits, folder: Path
) -> None:
    loaded = load_model(folder, dtype, quantization=Quantization(bits, torch.device("cpu")))
    tokens = torch.arange(12).view(2, 6)
    with torch.no_grad():
        before = described(loaded)
        expected = loaded(tokens).logits
        # One worker alone may have made a forward pass.
        assert described(loaded) == before
    to_bytes(loaded, torch.device("cpu"))
    kept = described(loaded)
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, expected)
    empty = empty_model(folder, dtype)
    quantize_empty(empty, bits)
    kinds = {"4bit": torch.uint8, "8bit": torch.int8}
    packed = {
        name: value for name, value in loaded.named_parameters() if value.dtype == kinds[bits]
    }
    assert packed
    for name, value in empty.named_parameters():
        if name in packed:
            layer = empty.get_submodule(name.removesuffix(".weight"))
            assert value.shape == (layer.out_features, layer.in_features)
            assert packed[name].numel() == value.numel() // (2 if bits == "4bit" else 1)
        else:
            assert kept[f"{name}:"] == (value.dtype, value.shape), name
    found = {name: kind for name, kind in described(empty).items() if not name.endswith(":")}
    assert found == {name: kind for name, kind in kept.items() if not name.endswith(":")}
