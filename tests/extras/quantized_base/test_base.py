"""Bases in 4 and 8 bits, before they are sharded; layers in 8 bits, against plain PyTorch."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from architectures import PACKED, build
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from moray.config.schema.train import Adapter
from moray.extras.quantized_base.base import (
    Linear8bit,
    quantize_empty,
    quantize_rows,
    to_bytes,
)
from moray.model.adapter import add_adapter
from moray.model.load import empty_model, load_model
from moray.model.quantization import Bits, Quantization

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


INPUTS, OUTPUTS = 48, 32


@pytest.fixture
def weight() -> Tensor:
    """Rows of different sizes, one of which is zero."""
    torch.manual_seed(0)
    made = torch.randn(OUTPUTS, INPUTS) * torch.logspace(-20, 10, OUTPUTS)[:, None]
    made[3] = 0
    return made


@pytest.fixture
def layer() -> Linear8bit:
    torch.manual_seed(1)
    made = Linear8bit(INPUTS, OUTPUTS, bias=True, dtype=torch.float32, transposed=False)
    integers, scale = quantize_rows(torch.randn(OUTPUTS, INPUTS))
    made.weight.data, made.scale.data = integers, scale.float()
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_off_by_at_most_half_a_step_of_its_row(
    dtype: torch.dtype, weight: Tensor
) -> None:
    weight = weight.to(dtype)
    integers, scale = quantize_rows(weight)
    assert (integers.dtype, scale.dtype) == (torch.int8, torch.bfloat16)
    step, exact = scale.double()[:, None], weight.double()
    assert ((integers.double() * step - exact).abs() <= step * (0.5 + 1e-6)).all()
    # A step is a 127th of the largest magnitude, and not less than needed.
    largest = exact.abs().amax(dim=1)
    present = largest > 0
    torch.testing.assert_close(
        scale.double()[present], largest[present] / 127, rtol=2**-8, atol=0.0
    )
    assert (integers.abs().amax(dim=1)[present] >= 126).all()
    assert (integers[~present] == 0).all()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_product_and_gradient_are_those_of_the_dequantized_weight(
    precision: torch.dtype, layer: Linear8bit
) -> None:
    states = torch.randn(2, 5, INPUTS, requires_grad=True)
    other = states.detach().clone().requires_grad_()
    by = torch.randn(2, 5, OUTPUTS)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        found = layer(states)
        whole = layer.weight.to(precision) * layer.scale.to(precision)[:, None]
        expected = F.linear(other, whole) + layer.bias.to(precision)
    assert found.dtype == precision
    assert torch.equal(found, expected)
    (gradient,) = torch.autograd.grad(found, states, by.to(precision))
    assert torch.equal(gradient, torch.autograd.grad(expected, other, by.to(precision))[0])
    assert [value.requires_grad for value in layer.parameters()] == [False] * 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager_decomp_partition"])
def test_no_dequantized_weight_is_kept_for_the_backward_pass(
    backend: str, layer: Linear8bit
) -> None:
    # The second one decides what is kept as TorchInductor does, without its compiler.
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=backend)
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    states = torch.randn(5, INPUTS, requires_grad=True)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        compiled(states)
    assert {tensor.data_ptr() for tensor in kept} <= {p.data_ptr() for p in layer.parameters()}


@pytest.mark.parametrize("name", ["Llama", "GPT-2"])
def test_the_layers_are_those_that_4_bits_take(name: str, tmp_path: Path) -> None:
    original = build(PACKED[name]())
    original.save_pretrained(tmp_path)
    eight = load_model(tmp_path, quantization=Quantization("8bit"))
    four = load_model(tmp_path, quantization=Quantization("4bit"))
    found = {path for path, layer in eight.named_modules() if isinstance(layer, Linear8bit)}
    assert found == {path for path, layer in four.named_modules() if "4bit" in str(type(layer))}
    for path in found:
        layer, before = eight.get_submodule(path), original.get_submodule(path)
        assert isinstance(layer, Linear8bit)
        weight = before.weight if isinstance(before, nn.Linear) else before.weight.T
        integers, scale = quantize_rows(weight.detach())
        assert torch.equal(layer.weight, integers)
        assert torch.equal(layer.scale, scale.float())


def test_dora_computes_with_the_dequantized_weights(tmp_path: Path) -> None:
    build(PACKED["Llama"]()).save_pretrained(tmp_path)
    quantized, plain = load_model(tmp_path, quantization=Quantization("8bit")), load_model(tmp_path)
    for path, layer in quantized.named_modules():
        if isinstance(layer, Linear8bit):
            plain.get_submodule(path).weight.data = layer.dequantize()
    outputs = []
    for model in (quantized, plain):
        add_adapter(model, Adapter(rank=2, use_dora=True), seed=0)
        torch.manual_seed(0)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(weight, std=0.1)
        with torch.no_grad():
            outputs.append(model(torch.arange(12).view(2, 6)).logits)
    torch.testing.assert_close(*outputs)
