"""The experts of a frozen base in 4 bits, which are no layers but tensors of all of them.

transformers reads them as it reads others, and bitsandbytes quantizes each as it is read. While
experts compute, and PEFT adds their adapters, the weights stand there in the type that they were
loaded in; otherwise only their bytes do.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import register_quantizer
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

if TYPE_CHECKING:
    from bitsandbytes.functional import QuantState

_METHOD = "nf4_with_experts"
# Of the modules of experts: their scales by the name of a tensor, None until they are known.
_STATES = "quant_states"


def tensors_of_experts(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules of a model's experts, with the names of their tensors that are quantized."""
    for module in model.modules():
        if "Expert" in type(module).__name__:
            for name, weight in module.named_parameters(recurse=False):
                if weight.dim() == 3:
                    yield module, name


class NF4(BitsAndBytesConfig):
    """QLoRA's data type, for linear layers and for experts."""

    def __init__(self) -> None:
        super().__init__(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        self.quant_method = _METHOD


@register_quantizer(_METHOD)
class _Quantizer(Bnb4BitHfQuantizer):
    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **_: Any) -> bool:
        needed: bool = super().param_needs_quantization(model, param_name)
        return needed or _is_of_experts(model, param_name)

    def get_quantize_ops(self) -> ConversionOps:
        return _Quantize(super().get_quantize_ops())


def _is_of_experts(model: PreTrainedModel, name: str) -> bool:
    owner, _, tensor = name.rpartition(".")
    module = model.get_submodule(owner)
    # Also those that are quantized already, which have two dimensions.
    return (module, tensor) in tensors_of_experts(module) or tensor in states_of(module)


class _Quantize(ConversionOps):
    """Quantizes experts, and leaves layers to transformers."""

    def __init__(self, of_layers: ConversionOps) -> None:
        self._of_layers = of_layers

    def convert(
        self, input_dict: dict[str, Any], model: PreTrainedModel, **keywords: Any
    ) -> dict[str, Any]:
        from bitsandbytes.functional import quantize_4bit

        layers, parameters = {}, {}
        for name, value in input_dict.items():
            if not _is_of_experts(model, name):
                layers[name] = value
                continue
            whole = value[0] if isinstance(value, list) else value
            # A view of a larger tensor would be read as if it were the whole.
            packed, state = quantize_4bit(
                whole.contiguous(), compress_statistics=True, quant_type="nf4"
            )
            owner, _, tensor = name.rpartition(".")
            vars(model.get_submodule(owner)).setdefault(_STATES, {})[tensor] = state
            parameters[name] = nn.Parameter(packed, requires_grad=False)
            # As those of layers have it.
            vars(parameters[name])["quant_state"] = state
        if layers:
            parameters |= self._of_layers.convert(layers, model=model, **keywords)
        return parameters


def states_of(module: nn.Module) -> "dict[str, QuantState | None]":
    """The scales of a module's experts; empty if it has none in 4 bits."""
    states: dict[str, QuantState | None] = vars(module).get(_STATES, {})
    return states


def experts_of(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that have experts in 4 bits."""
    return (module for module in model.modules() if states_of(module))


def expect_experts(model: PreTrainedModel) -> None:
    """Have a model on `meta` take the tensors of its experts for those of 4 bits."""
    for module, name in [*tensors_of_experts(model)]:
        vars(module).setdefault(_STATES, {})[name] = None
        vars(module._parameters[name])["quant_state"] = None


@dataclass(frozen=True)
class _WithoutValues:
    """Stands for the scales of a tensor that has no values.

    Attributes:
        shape: of the whole.
        dtype: that it is computed with in.
    """

    shape: torch.Size
    dtype: torch.dtype


def quantize_empty_experts(model: nn.Module) -> list[nn.Parameter]:
    """Give the experts of a model on `meta` as many bytes as those in 4 bits have.

    Unlike those of `expect_experts`, they can compute, with wholes without values.

    Returns:
        Their tensors.
    """
    tensors = []
    for module, name in [*tensors_of_experts(model)]:
        whole = module._parameters[name]
        assert whole is not None
        packed = torch.empty((whole.numel() + 1) // 2, 1, dtype=torch.uint8, device="meta")
        state = _WithoutValues(whole.shape, whole.dtype)
        vars(module).setdefault(_STATES, {})[name] = state
        tensors.append(nn.Parameter(packed, requires_grad=False))
        vars(tensors[-1])["quant_state"] = state
        module._parameters[name] = tensors[-1]
    return tensors


def compute_whole(model: nn.Module, recompute: bool = False) -> None:
    """Have experts compute with their weights in the type that they were loaded in.

    Call it again once they have adapters, which are around them.

    Args:
        recompute: whether they compute again in the backward pass, instead of keeping their weights
            until then; for models whose blocks don't.
    """
    seen: set[nn.Module] = set()
    # Those around others come first.
    for module in model.modules():
        around: Any = module
        experts = around.get_base_layer() if hasattr(module, "get_base_layer") else module
        if states_of(experts) and experts not in seen:
            seen.add(experts)
            around.forward = _whole(around.forward, experts, recompute)


def _whole(
    forward: Callable[..., Tensor], experts: nn.Module, recompute: bool
) -> Callable[..., Tensor]:
    def whole(*args: Any, **keywords: Any) -> Tensor:
        with _in_place(experts, _dequantized):
            return forward(*args, **keywords)

    def again(*args: Any, **keywords: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return whole(*args, **keywords)
        result: Tensor = checkpoint(
            whole, *args, use_reentrant=False, preserve_rng_state=False, **keywords
        )
        return result

    # The compiler can't follow parameters that change.
    called: Callable[..., Tensor] = torch.compiler.disable(  # type: ignore[no-untyped-call]
        again if recompute else whole
    )
    return called


@contextmanager
def shapes_of_experts(model: nn.Module) -> Iterator[None]:
    """During the body, adapters can be added: experts have the shapes that they stand for."""
    with ExitStack() as stack:
        for experts in [*experts_of(model)]:
            stack.enter_context(_in_place(experts, _stand_in))
        yield


@contextmanager
def _in_place(
    experts: nn.Module, replacement: "Callable[[Tensor, QuantState], Tensor]"
) -> Iterator[None]:
    """During the body, others stand in place of bytes, if those are there."""
    packed = {
        name: (weight, state)
        for name, state in states_of(experts).items()
        if state and (weight := experts._parameters.get(name)) is not None
        if weight.dtype == torch.uint8
    }
    for name, (weight, state) in packed.items():
        other = replacement(weight.detach(), state)
        experts._parameters[name] = nn.Parameter(other, requires_grad=False)
    try:
        yield
    finally:
        for name, (weight, _) in packed.items():
            experts._parameters[name] = weight


def _dequantized(weight: Tensor, state: "QuantState | _WithoutValues") -> Tensor:
    if isinstance(state, _WithoutValues):
        return torch.empty(state.shape, dtype=state.dtype, device=weight.device)
    from bitsandbytes.functional import dequantize_4bit

    whole: Tensor = dequantize_4bit(weight, state)
    return whole


def _stand_in(weight: Tensor, state: "QuantState") -> Tensor:
    """A tensor of the shape and type of the whole, which takes no memory."""
    return torch.empty((), dtype=state.dtype, device=weight.device).expand(state.shape)
