"""The frozen base of an adapter with linear layers of 4 bits, by bitsandbytes, or of 8.

bitsandbytes is imported when it is needed: that takes a while, and most runs don't have it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.quantizers import AutoHfQuantizer

from moray.errors import UserError
from moray.model.linear_8bit import Rows8bit
from moray.workers.collectives import from_first_worker

if TYPE_CHECKING:
    from bitsandbytes.nn import Linear4bit

Bits = Literal["4bit", "8bit"]
_CONFIGS = {
    "4bit": BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    ),
    "8bit": Rows8bit(),
}
# Gates of recurrent layers and position embeddings of images have three dimensions too.
_FEW = 0.05
# Their code uses the weights of some linear layers without calling these.
_COMPUTE_WITH_WEIGHTS = {"falcon_mamba", "gemma3n", "gemma3n_text", "mamba"}


@dataclass(frozen=True)
class Quantization:
    """How a base is quantized while it is loaded.

    Attributes:
        bits: of a weight.
        device: device that computes it; None for the current GPU, or the CPU if there is none.
    """

    bits: Bits
    device: torch.device | None = None

    def keywords(self) -> dict[str, Any]:
        """Arguments of transformers' `from_pretrained`."""
        placed = {} if self.device is None else {"device_map": {"": self.device}}
        return {"quantization_config": _CONFIGS[self.bits], **placed}


def check_quantized(model: PreTrainedModel, bits: Bits) -> None:
    """Check that all large layers of a model are quantized, and are called as layers.

    Raises:
        UserError: if they aren't.
    """
    kind, remedy = model.config.model_type, "set it to null, and adapter.base_dtype: bf16"
    if kind in _COMPUTE_WITH_WEIGHTS:
        problem = f"{bits} doesn't work with {kind} models, which compute with weights of layers"
        raise UserError("adapter.quantize_base", problem, remedy)
    # transformers keeps experts in tensors of three dimensions, which are left as they are.
    others = (module for module in model.modules() if not isinstance(module, nn.Conv1d))
    direct = (weight for module in others for weight in module.parameters(recurse=False))
    whole = sum(weight.numel() for weight in direct if weight.dim() == 3)
    if whole > _FEW * model.num_parameters():
        problem = f"{bits} doesn't quantize the experts of a {kind} model ({whole:,} weights)"
        raise UserError("adapter.quantize_base", problem, remedy)


def keep_layout(model: PreTrainedModel) -> None:
    """Keep 4-bit layers from changing at a forward pass, which one worker may make alone.

    On CPUs with AVX512-BF16, bitsandbytes repacks the weights at the first forward pass in
    evaluation mode, for a kernel without a backward pass: training after an evaluation would then
    get no gradients through these layers. It also converts their biases to the type that they
    compute in, which is done here instead.
    """
    for layer in _layers(model):
        layer.support_avx512bf16_for_cpu = False
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.to(layer.compute_dtype)


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
    model.tie_weights()
    keep_layout(model)


def to_bytes(model: PreTrainedModel, device: torch.device) -> None:
    """Make the 4-bit weights of a model plain parameters of bytes, which can be sharded.

    All workers call this. The first one has the weights, the others are as `quantize_empty` leaves
    them. Scales, one byte for 64 weights, are kept whole by each worker, in their layers.

    Args:
        model: the model.
        device: device to keep scales on.
    """
    for layer in _layers(model):
        weight = layer.weight
        state = from_first_worker(partial(getattr, weight, "quant_state"))
        state.to(device)
        if weight.device.type == "meta":
            weight = torch.empty((weight.numel() + 1) // 2, 1, dtype=torch.uint8, device="meta")
        layer.weight = nn.Parameter(weight.detach().as_subclass(Tensor), requires_grad=False)
        # From here, the layer finds it at each forward pass.
        layer.quant_state = state


def _layers(model: PreTrainedModel) -> "Iterator[Linear4bit]":
    if not getattr(model, "is_loaded_in_4bit", False):
        return iter(())
    from bitsandbytes.nn import Linear4bit

    return (module for module in model.modules() if isinstance(module, Linear4bit))
