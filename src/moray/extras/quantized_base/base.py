"""The frozen base of an adapter with linear layers of 4 bits, by bitsandbytes, or of 8.

Of 8-bit layers, only the weights are quantized, not what they compute with. Source: Dettmers et
al., "LLM.int8()", 2022, section 2.1, for the integers, one scale to a row. Unlike there, a weight
is dequantized before the product, on CPUs as on GPUs, in training as in evaluation.

bitsandbytes is imported when it is needed: that takes a while, and most runs don't have it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D
from transformers.quantizers import AutoHfQuantizer, HfQuantizer, register_quantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils.quantization_config import QuantizationConfigMixin

from moray.errors import UserError
from moray.extras.quantized_base.experts import (
    NF4,
    compute_whole,
    expect_experts,
    experts_of,
    shapes_of_experts,
    states_of,
    tensors_of_experts,
)
from moray.model.quantization import Bits, Quantization
from moray.workers.collectives import from_first_worker

if TYPE_CHECKING:
    from bitsandbytes.nn import Linear4bit

_ROWS_IN_8_BITS = "rows_in_8_bits"
_LARGEST = 127
# Gates of recurrent layers and position embeddings of images have three dimensions too.
_FEW = 0.05
# Their code uses the weights of some linear layers without calling these.
_COMPUTE_WITH_WEIGHTS = {"falcon_mamba", "gemma3n", "gemma3n_text", "mamba"}


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
        self.quant_method = _ROWS_IN_8_BITS


@register_quantizer(_ROWS_IN_8_BITS)
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
            # transformers can't draw integers; whoever loads the model refuses missing weights.
            vars(layer)["_is_hf_initialized"] = True
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
        parameters: dict[str, nn.Parameter] = {}
        for name, value in input_dict.items():
            layer = model.get_submodule(name.removesuffix(".weight"))
            assert isinstance(layer, Linear8bit)
            weight = value[0] if isinstance(value, list) else value
            integers, scale = quantize_rows(weight.T if layer.transposed else weight)
            parameters[name] = nn.Parameter(integers.contiguous(), requires_grad=False)
            scale = scale.to(layer.scale.dtype)
            parameters[name.removesuffix("weight") + "scale"] = nn.Parameter(
                scale, requires_grad=False
            )
        return parameters


_CONFIGS = {"4bit": NF4(), "8bit": Rows8bit()}


def keywords(quantization: Quantization) -> dict[str, Any]:
    """Arguments of transformers' `from_pretrained`."""
    device = quantization.device
    placed = {} if device is None else {"device_map": {"": device}}
    return {"quantization_config": _CONFIGS[quantization.bits], **placed}


def check_quantized(model: PreTrainedModel, bits: Bits) -> None:
    """Check that all large layers of a model are quantized, and are called as layers.

    Raises:
        UserError: if they aren't.
    """
    kind, remedy = model.config.model_type, "set it to null, and adapter.base_dtype: bf16"
    if kind in _COMPUTE_WITH_WEIGHTS:
        problem = f"{bits} doesn't work with {kind} models, which compute with weights of layers"
        raise UserError("adapter.quantize_base", problem, remedy)
    # Of experts and others, which are no layers: those that are left as they are.
    quantized = {*tensors_of_experts(model)} if bits == "4bit" else set()
    others = (module for module in model.modules() if not isinstance(module, nn.Conv1d))
    left = [
        weight
        for module in others
        for name, weight in module.named_parameters(recurse=False)
        if weight.dim() == 3 and (module, name) not in quantized
    ]
    whole = sum(weight.numel() for weight in left)
    if whole > _FEW * model.num_parameters():
        problem = f"{bits} doesn't quantize the experts of a {kind} model ({whole:,} weights)"
        other = "4bit, or to null and " if bits == "8bit" else "null, and "
        raise UserError("adapter.quantize_base", problem, f"set it to {other}base_dtype: bf16")


def keep_layout(model: PreTrainedModel) -> None:
    """Prepare 4-bit weights for forward passes, which one worker may make alone.

    On CPUs with AVX512-BF16, bitsandbytes repacks the weights at the first forward pass in
    evaluation mode, for a kernel without a backward pass: training after an evaluation would then
    get no gradients through these layers. It also converts their biases to the type that they
    compute in, which is done here instead.
    """
    for layer in _layers(model):
        layer.support_avx512bf16_for_cpu = False
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.to(layer.compute_dtype)
    compute_whole(model)


def quantize_empty(model: PreTrainedModel, bits: Bits) -> None:
    """Make the layers of a model on `meta` those of one that is quantized while it is loaded.

    Weights of 4 bits have the shapes that they have before they are quantized.
    """
    quantizer = AutoHfQuantizer.from_config(_CONFIGS[bits], pre_quantized=False)
    # transformers leaves out the last layer, and quantizes before it ties embeddings.
    output = model.get_output_embeddings()
    output.weight = nn.Parameter(output.weight)
    quantizer.preprocess_model(model, device_map=None)
    quantizer.postprocess_model(model)
    if bits == "4bit":
        expect_experts(model)
    model.tie_weights()
    keep_layout(model)


def to_bytes(model: PreTrainedModel, device: torch.device) -> None:
    """Make the 4-bit weights of a model plain parameters of bytes, which can be sharded.

    All workers call this. The first one has the weights, the others are as `quantize_empty` leaves
    them. Each worker keeps the scales, one byte for 64 weights, whole on its device, in the layers.
    """
    for layer in _layers(model):
        state, layer.weight = _as_bytes(layer.weight, layer.weight.quant_state, device)
        # From here, the layer finds it at each forward pass.
        layer.quant_state = state
    for experts in experts_of(model):
        states = states_of(experts)
        # Workers have them in other orders.
        for name in sorted(states):
            weight = experts._parameters[name]
            states[name], experts._parameters[name] = _as_bytes(weight, states[name], device)


def _as_bytes(weight: Any, state: Any, device: torch.device) -> tuple[Any, nn.Parameter]:
    """The scales of a 4-bit weight, which the first worker has, and the weight as plain bytes."""
    state = from_first_worker(lambda: state)
    state.to(device)
    if weight.device.type == "meta":
        weight = torch.empty((weight.numel() + 1) // 2, 1, dtype=torch.uint8, device="meta")
    return state, nn.Parameter(weight.detach().as_subclass(Tensor), requires_grad=False)


@contextmanager
def adding_adapters(model: PreTrainedModel, recompute: bool) -> Iterator[None]:
    """During the body, adapters are added, also to experts.

    Args:
        recompute: as for `compute_whole`.
    """
    with shapes_of_experts(model):
        yield
    compute_whole(model, recompute)


def _layers(model: PreTrainedModel) -> "Iterator[Linear4bit]":
    if not getattr(model, "is_loaded_in_4bit", False):
        return iter(())
    from bitsandbytes.nn import Linear4bit

    return (module for module in model.modules() if isinstance(module, Linear4bit))
