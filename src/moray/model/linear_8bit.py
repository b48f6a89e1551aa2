"""Linear layers whose frozen weights are 8-bit integers; what they compute with isn't quantized.

Source: Dettmers et al., "LLM.int8()", 2022, section 2.1, for the integers, one scale to a row.
Unlike there, a weight is dequantized before the product, on CPUs as on GPUs, in training as in
evaluation.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D
from transformers.quantizers import HfQuantizer, register_quantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils.quantization_config import QuantizationConfigMixin

_METHOD = "rows_in_8_bits"
_LARGEST = 127


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row of a matrix by its largest magnitude.

    Args:
        weight: shape (outputs, inputs), of any floating-point type.

    Returns:
        Integers, shape (outputs, inputs), and scales, shape (outputs,). An integer times its scale
        is at most half a scale off.
    """
    largest = torch.linalg.vector_norm(weight, torch.inf, dim=1).float()
    # With 8 significant bits, scales and products are the same in a run's fp32 and bf16, to one
    # rounding.
    scale = (largest / _LARGEST).bfloat16().clamp(min=torch.finfo(torch.bfloat16).tiny)
    return (weight / scale.float()[:, None]).round_().to(torch.int8), scale


def _dequantized(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return weight * scale.to(dtype)[:, None]


class _Product(torch.autograd.Function):
    """States times a weight, which is dequantized again for their gradient instead of kept."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return states @ _dequantized(weight, scale, states.dtype).T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        weight, scale = ctx.saved_tensors
        # In the order of `_dequantized`, the compiler would take both for one, and keep its result.
        return gradient @ (scale.to(gradient.dtype)[:, None] * weight), None, None


class Linear8bit(nn.Linear):
    """A frozen linear layer in 8 bits, which computes in its input's type, or in autocast's.

    Attributes:
        weight: integers, shape (outputs, inputs).
        scale: of each row, shape (outputs,); values of bf16, in the type of the bias.
        transposed: whether the model's file has the transpose of its weight.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype, transposed: bool
    ) -> None:
        super().__init__(inputs, outputs, bias, dtype=dtype)
        integers = torch.empty(outputs, inputs, dtype=torch.int8)
        self.weight = nn.Parameter(integers, requires_grad=False)
        self.scale = nn.Parameter(torch.empty(outputs, dtype=dtype), requires_grad=False)
        self.transposed = transposed
        self.requires_grad_(False)

    def forward(self, states: Tensor) -> Tensor:
        """Shape (..., inputs) to (..., outputs)."""
        kind, dtype = states.device.type, states.dtype
        # `meta` has none.
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        product: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            states.to(dtype), self.weight, self.scale
        )
        return product if self.bias is None else product + self.bias.to(dtype)

    def dequantize(self) -> Tensor:
        """The weight that it computes with; PEFT asks for it, for DoRA."""
        return _dequantized(self.weight, self.scale, self.scale.dtype)

    @property
    def W_q(self) -> Tensor:  # noqa: N802
        """By this name, PEFT recognises a layer that has `dequantize`."""
        return self.weight


class Rows8bit(QuantizationConfigMixin):
    """Has transformers load linear layers as `Linear8bit`."""

    def __init__(self) -> None:
        self.quant_method = _METHOD


@register_quantizer(_METHOD)
class _Quantizer(HfQuantizer):
    """Quantizes the layers that bitsandbytes would, one by one as they are read."""

    is_trainable = True

    def is_serializable(self) -> bool:
        return False

    def update_device_map(self, device_map: dict[str, Any] | None) -> dict[str, Any] | None:
        if device_map is None and torch.cuda.is_available():
            return {"": torch.cuda.current_device()}
        return device_map

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_: Any) -> None:
        kept = self.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
        # Subclasses are left alone, because their code may do more.
        found = [
            (name, module)
            for name, module in model.named_modules()
            if (type(module) is nn.Linear or isinstance(module, Conv1D))
            and should_convert_module(name, kept)
        ]
        for name, module in found:
            transposed, dtype = isinstance(module, Conv1D), module.weight.dtype
            outputs, inputs = (module.weight.T if transposed else module.weight).shape
            with torch.device("meta"):
                layer = Linear8bit(inputs, outputs, module.bias is not None, dtype, transposed)
            model.set_submodule(name, layer)

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **_: Any) -> bool:
        layer = model.get_submodule(param_name.rpartition(".")[0])
        return param_name.endswith(".weight") and isinstance(layer, Linear8bit)

    def get_quantize_ops(self) -> ConversionOps:
        return _Rows()


class _Rows(ConversionOps):
    def convert(
        self, input_dict: dict[str, Any], model: nn.Module, **_: Any
    ) -> dict[str, nn.Parameter]:
        made: dict[str, nn.Parameter] = {}
        for name, value in input_dict.items():
            layer = model.get_submodule(name.removesuffix(".weight"))
            assert isinstance(layer, Linear8bit)
            weight = value[0] if isinstance(value, list) else value
            integers, scale = quantize_rows(weight.T if layer.transposed else weight)
            made[name] = nn.Parameter(integers.contiguous(), requires_grad=False)
            scale = scale.to(layer.scale.dtype)
            made[name.removesuffix("weight") + "scale"] = nn.Parameter(scale, requires_grad=False)
        return made
