"""The number of a model's weights, and of the operations that training them takes."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moray.model.forward import decoder_of


def num_weights(parameter: Tensor) -> int:
    """Number of weights in a parameter; a 4-bit parameter packs two weights into a byte."""
    state = getattr(parameter, "quant_state", None)
    return int(parameter.numel() if state is None else state.shape.numel())


def num_quantized(model: nn.Module) -> int:
    """Number of a model's weights that are stored in 4 or 8 bits."""
    quantized = (
        weight
        for weight in model.parameters()
        if hasattr(weight, "quant_state") or weight.dtype == torch.int8
    )
    return sum(map(num_weights, quantized))


def flops_per_token(model: PreTrainedModel, block_size: int) -> float:
    """Floating-point operations of a forward and a backward pass, per token.

    6 for each trained weight in a matrix product and 4 for each frozen one, which has no gradient;
    plus 12 · layers · width · block_size for attention, as if each token attended to the whole row.
    For architectures without attention heads, such as Mamba, the second term is left out.
    Source: Chowdhery et al., "PaLM", 2022, appendix B.
    """
    config = model.config.get_text_config()
    lookup = model.get_input_embeddings().weight
    output = model.get_output_embeddings()
    if lookup is output.weight:
        lookup = None
    # Text doesn't pass the rest, such as the tower of a model that also takes images.
    passed = {id(p): p for module in (decoder_of(model), output) for p in module.parameters()}
    weights = [parameter for parameter in passed.values() if parameter is not lookup]
    products = sum((6 if w.requires_grad else 4) * num_weights(w) for w in weights if w.dim() >= 2)
    heads = getattr(config, "num_attention_heads", 0)
    if not heads:
        return float(products)
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    attention = 12 * config.num_hidden_layers * heads * head * block_size
    return float(products + attention)
