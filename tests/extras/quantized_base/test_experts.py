"""Experts in 4 bits, against whole ones that are rounded in the same way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import PACKED, ROUTED, UNPACKED, build
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedModel

from moray.config.schema.train import Adapter
from moray.extras.quantized_base.base import adding_adapters, quantize_empty, to_bytes
from moray.model.adapter import add_adapter
from moray.model.load import empty_model, load_model
from moray.model.quantization import Quantization
from moray.model.size import num_quantized
from moray.tasks.language.proofs import plain
from moray.train.memory import frozen_bytes

KNOWN = PACKED | UNPACKED | ROUTED
CPU = torch.device("cpu")
NF4 = Quantization("4bit", CPU)
TOKENS = torch.arange(48).view(2, 24)
USUAL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def saved(architecture: str, folder: Path) -> Path:
    build(KNOWN[architecture]()).save_pretrained(folder)
    return folder


def is_expert(name: str) -> bool:
    return name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def rounded(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """A base with layers in 4 bits, and whole experts with the values that 4 bits have."""
    whole = dict(load_model(folder, dtype).named_parameters())
    model = load_model(folder, dtype, quantization=NF4)
    for name in [name for name, _ in model.named_parameters() if is_expert(name)]:
        packed = quantize_4bit(whole[name].data, compress_statistics=True, quant_type="nf4")
        owner, _, tensor = name.rpartition(".")
        weight = nn.Parameter(dequantize_4bit(*packed), requires_grad=False)
        experts = model.get_submodule(owner)
        setattr(experts, tensor, weight)
        # Its class has it.
        vars(experts).pop("forward", None)
        vars(experts).pop("quant_states", None)
    return model


def loss_and_gradients(model: PreTrainedModel, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(1)
    trained = [weight for weight in model.train().parameters() if weight.requires_grad]
    for weight in trained:
        weight.data += 0.1 * torch.randn_like(weight)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss
    return [loss.detach(), *torch.autograd.grad(loss, trained)]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("architecture", "targets"),
    [
        ("Qwen3-MoE", "all-linear"),
        ("Mixtral", USUAL),
        ("Mixtral", ["q_proj"]),
        ("gpt-oss", USUAL),
        ("Gemma 4 MoE", "all-linear"),
    ],
)
def test_loss_and_gradients_are_those_of_experts_rounded_in_the_same_way(
    architecture: str, targets: Any, dtype: torch.dtype, recompute: bool, tmp_path: Path
) -> None:
    folder = saved(architecture, tmp_path)
    adapter = Adapter(rank=2, target_modules=targets)
    model, other = load_model(folder, dtype, quantization=NF4), rounded(folder, dtype)
    with adding_adapters(model, recompute):
        add_adapter(model, adapter, seed=0)
    add_adapter(other, adapter, seed=0)
    found, expected = (loss_and_gradients(one, dtype) for one in (model, other))
    assert len(found) > 4
    for one, right in zip(found, expected, strict=True):
        assert torch.equal(one, right)


def test_bytes_are_those_that_are_promised_and_none_are_whole_between_passes(
    tmp_path: Path,
) -> None:
    folder = saved("Mixtral", tmp_path)
    adapter = Adapter(rank=2, quantize_base="4bit", target_modules=USUAL)
    whole, model = load_model(folder), load_model(folder, quantization=NF4)
    with adding_adapters(model, recompute=True):
        add_adapter(model, adapter, seed=0)
    loss_and_gradients(model, torch.float32)
    frozen = [weight for weight in model.parameters() if not weight.requires_grad]
    held = sum(weight.untyped_storage().nbytes() for weight in frozen)
    # Experts, and the four layers of attention in each of two layers.
    quantized = sum(
        weight.numel()
        for name, weight in whole.named_parameters()
        if is_expert(name) or "self_attn" in name
    )
    assert num_quantized(model) == quantized
    other = whole.num_parameters() - quantized
    scales = round(quantized * (1 / 64 + 4 / (64 * 256)))
    assert held == frozen_bytes(adapter, quantized, other) - scales


@pytest.mark.parametrize("targets", [USUAL, ["q_proj"]], ids=["adapted", "not adapted"])
def test_no_whole_experts_are_kept_for_the_backward_pass(targets: Any, tmp_path: Path) -> None:
    folder = saved("Mixtral", tmp_path)
    model = load_model(folder, quantization=NF4)
    with adding_adapters(model, recompute=True):
        add_adapter(model, Adapter(rank=2, target_modules=targets), seed=0)
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model.train()(input_ids=TOKENS, labels=TOKENS, use_cache=False)
    assert kept
    assert not [tensor.shape for tensor in kept if tensor.dim() == 3 and len(tensor) == 4]


def test_plain_bytes_compute_the_same_and_an_empty_model_is_like_them(tmp_path: Path) -> None:
    folder = saved("Qwen3-MoE", tmp_path)
    model = load_model(folder, quantization=NF4)
    with torch.no_grad():
        expected = model(TOKENS).logits
    to_bytes(model, CPU)
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits, expected)
    empty = empty_model(folder)
    quantize_empty(empty, "4bit")
    assert num_quantized(empty) == num_quantized(load_model(folder, quantization=NF4))
    # Other workers have no scales before they get them from the first one.
    to_bytes_of_first = {
        name: weight.shape for name, weight in model.named_parameters() if is_expert(name)
    }
    assert to_bytes_of_first
    for name, shape in to_bytes_of_first.items():
        assert empty.get_parameter(name).numel() == 2 * shape.numel()


def test_the_plain_library_rounds_experts_too(tmp_path: Path) -> None:
    folder = saved("Qwen3-MoE", tmp_path)
    with torch.no_grad():
        losses = [
            model(input_ids=TOKENS, labels=TOKENS).loss.item()
            for model in (
                load_model(folder, quantization=NF4),
                plain.load(folder, "4bit", CPU),
                plain.load(folder),
            )
        ]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)
    assert abs(losses[1] - losses[2]) > 1e-3
