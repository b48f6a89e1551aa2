"""Layers and experts of a quantized base, without values."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from moray.config import extras
from moray.model.quantization import Bits


class _Dequantized(torch.autograd.Function):
    """A product with a 4-bit weight, which is dequantized for it, and again for its gradient."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        ctx.of = shape, dtype
        weight = torch.empty(shape, dtype=dtype, device=states.device)
        return states.to(dtype) @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        shape, dtype = ctx.of
        return (
            gradient.to(dtype) @ torch.empty(shape, dtype=dtype, device=gradient.device).T,
            None,
            None,
        )


def quantize(model: PreTrainedModel, bits: Bits) -> list[Tensor]:
    """Have a model's linear layers but the output embedding compute as quantized ones do.

    In 4 bits, its experts too, once adapters are added as to others.

    Args:
        model: on `meta`.
        bits: of a weight.

    Returns:
        Their weights.
    """
    if bits == "8bit":
        extras.part(extras.QUANTIZED[bits], "base").quantize_empty(model, bits)
        return [weight for weight in model.parameters() if weight.dtype == torch.int8]
    quantized: list[Tensor] = []
    quantized += extras.part(extras.QUANTIZED[bits], "experts").quantize_empty_experts(model)
    # bitsandbytes' layers compute with values; in bf16.
    for module in model.modules():
        # As transformers has it, routers of a class of their own aren't.
        is_layer = type(module) is nn.Linear or isinstance(module, Conv1D)
        if not is_layer or module is model.get_output_embeddings():
            continue
        shape = tuple(module.weight.shape)
        quantized.append(module.weight)
        if isinstance(module, nn.Linear):
            shape = shape[::-1]
        module.forward = _forward_of(module, shape, torch.bfloat16)
    return quantized


def _forward_of(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    apply: Callable[..., Tensor] = _Dequantized.apply

    def forward(states: Tensor) -> Tensor:
        product = apply(states, shape, dtype)
        return product if module.bias is None else product + module.bias  # type: ignore[operator]

    return forward
