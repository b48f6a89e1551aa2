"""How many numbers a model's weights have, and what they take."""

from torch import Tensor, nn


def num_weights(parameter: Tensor) -> int:
    """Numbers that a parameter stands for: one in 4 bits is packed, two of them to a byte."""
    state = getattr(parameter, "quant_state", None)
    return int(parameter.numel() if state is None else state.shape.numel())


def num_quantized(model: nn.Module) -> int:
    """Numbers in those weights of a model that are held in 4 bits."""
    return sum(num_weights(p) for p in model.parameters() if hasattr(p, "quant_state"))
