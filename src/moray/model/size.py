"""The number of a model's weights, and how many of them are quantized."""

from torch import Tensor, nn


def num_weights(parameter: Tensor) -> int:
    """Number of weights in a parameter; a 4-bit parameter packs two weights into a byte."""
    state = getattr(parameter, "quant_state", None)
    return int(parameter.numel() if state is None else state.shape.numel())


def num_quantized(model: nn.Module) -> int:
    """Number of a model's weights that are stored in 4 bits."""
    return sum(num_weights(p) for p in model.parameters() if hasattr(p, "quant_state"))
