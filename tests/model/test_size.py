"""The arithmetic of a pass, held against what PyTorch counts in one."""

import pytest
import torch
import transformers as hf
from architectures import UNPACKED, build
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from moray.config.schema.train import Adapter
from moray.model.adapter import add_adapter
from moray.model.size import flops_per_token

BLOCK_SIZE = 128
SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "max_position_embeddings": BLOCK_SIZE,
}


def llama(layers: int, heads: int, tied: bool) -> PreTrainedModel:
    config = hf.LlamaConfig(
        **SIZES,
        num_hidden_layers=layers,
        num_key_value_heads=heads,
        tie_word_embeddings=tied,
        # PyTorch counts matrix products, and not what its own kernel of attention does on a CPU.
        attn_implementation="eager",
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def counted(model: PreTrainedModel) -> float:
    """FLOPs per token of a forward and a backward pass over two rows."""
    tokens = torch.arange(2 * BLOCK_SIZE).view(2, BLOCK_SIZE)
    counter = FlopCounterMode(display=False)
    with counter:
        torch.autograd.backward(model(input_ids=tokens, labels=tokens, use_cache=False).loss)
    return counter.get_total_flops() / tokens.numel()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("layers", "heads"), [(1, 4), (3, 2)])
def test_it_is_what_a_pass_takes(layers: int, heads: int, tied: bool) -> None:
    model = llama(layers, heads, tied)
    assert flops_per_token(model, BLOCK_SIZE) == pytest.approx(counted(model), rel=0.02)


def test_of_an_architecture_without_attention_the_weights_count() -> None:
    model = build(UNPACKED["Mamba"]())
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    # Input and output embeddings are one matrix, which the output multiplies by.
    assert flops_per_token(model, BLOCK_SIZE) == 6 * sum(p.numel() for p in matrices)


def test_of_a_frozen_base_no_gradients_of_weights_are_made() -> None:
    # The first block's inputs get no gradients either, which weighs less the more blocks follow.
    model = llama(layers=8, heads=4, tied=False)
    add_adapter(model, Adapter(rank=4), seed=0)
    assert flops_per_token(model, BLOCK_SIZE) == pytest.approx(counted(model), rel=0.03)


def test_longer_rows_cost_more_by_their_attention_alone() -> None:
    model = llama(layers=3, heads=4, tied=False)
    more = flops_per_token(model, 2 * BLOCK_SIZE) - flops_per_token(model, BLOCK_SIZE)
    assert more == 12 * 3 * SIZES["hidden_size"] * BLOCK_SIZE


def test_a_model_without_weights_counts_alike() -> None:
    with torch.device("meta"):
        empty = llama(layers=2, heads=4, tied=True)
    assert flops_per_token(empty, 64) == flops_per_token(llama(2, 4, True), 64)
