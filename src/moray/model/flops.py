"""How much arithmetic training takes."""

from transformers import PreTrainedModel

from moray.model.size import num_weights


def flops_per_token(model: PreTrainedModel, block_size: int) -> float:
    """Floating-point operations of a forward and a backward pass, per token.

    6 for each trained weight in a matrix product, 4 for each frozen one, whose gradient isn't
    made; and attention's 12 · layers · width · block_size, as if each token saw the whole row.
    Architectures without attention heads, such as Mamba, are counted without the second term.
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
