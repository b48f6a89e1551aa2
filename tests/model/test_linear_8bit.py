"""Linear layers in 8 bits, against what plain PyTorch computes."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from architectures import PACKED, build
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from moray.config.schema.train import Adapter
from moray.model.adapter import add_adapter
from moray.model.linear_8bit import Linear8bit, quantize_rows
from moray.model.load import load_model
from moray.model.quantization import Quantization

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
