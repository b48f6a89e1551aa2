"""The floating-point operations that training takes."""

from transformers import PreTrainedModel

from moray.model.size import num_weights


def flops_per_token(model: PreTrainedModel, block_size: int) -> float:
    """Floating-point operations of a forward and a backward pass, per token.

    6 for each trained weight in a matrix product and 4 for each frozen one, which has no gradient;
    plus 12 · layers · width · block_size for attention, as if each token attended to the whole row.
    For architectures without attention heads, such as Mamba, the second term is left out.
    Source: Chowdhery et al., "PaLM", 2022, appendix B.
    """
    config = model.config.get_text_config()
    lookup = model.get_input_embeddings().weight
    if lookup is model.get_output_embeddings().weight:
        lookup = None
    weights = [parameter for parameter in model.parameters() if parameter is not lookup]
    products = sum((6 if w.requires_grad else 4) * num_weights(w) for w in weights if w.dim() >= 2)
    heads = getattr(config, "num_attention_heads", 0)
    if not heads:
        return float(products)
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    attention = 12 * config.num_hidden_layers * heads * head * block_size
    return float(products + attention)
