"""The blocks of a model."""

import pytest
import torch
import transformers as hf
from torch import nn
from transformers import AutoModelForCausalLM

from moray.config.schema import Adapter
from moray.model.adapter import add_adapter
from moray.model.blocks import blocks_of

LLAMA = hf.LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
)
GPT2 = hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (LLAMA, [f"model.layers.{number}" for number in range(3)]),
        (GPT2, [f"transformer.h.{number}" for number in range(2)]),
    ],
)
@pytest.mark.parametrize("adapter", [None, Adapter()])
def test_blocks_are_found_in_their_order(
    config: hf.PretrainedConfig, names: list[str], adapter: Adapter | None
) -> None:
    model = AutoModelForCausalLM.from_config(config)
    if adapter:
        add_adapter(model, adapter, seed=0)
    assert blocks_of(model) == [model.get_submodule(name) for name in names]


def test_a_model_without_weights_has_them_too() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LLAMA)
    assert len(blocks_of(model)) == 3


def test_an_architecture_that_names_none_has_none() -> None:
    model = AutoModelForCausalLM.from_config(GPT2)
    model._no_split_modules = None
    assert blocks_of(model) == []


def test_of_nested_blocks_the_outermost_count() -> None:
    config = hf.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    model = AutoModelForCausalLM.from_config(config)
    assert len(model._no_split_modules) == 2
    assert blocks_of(model) == list(model.backbone.layers)


def test_what_lies_outside_of_the_blocks_is_embeddings_and_norms_alone() -> None:
    for config in (LLAMA, GPT2):
        model = AutoModelForCausalLM.from_config(config)
        inside = {id(module) for block in blocks_of(model) for module in block.modules()}
        linear = [
            module
            for module in model.modules()
            if isinstance(module, nn.Linear) and id(module) not in inside
        ]
        assert linear == [model.get_output_embeddings()]
