from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import transformers as hf
from architectures import PACKED, build
from forks import run_forks
from torch import nn
from transformers import AutoModelForCausalLM

from moray.config.schema.train import Adapter
from moray.model import forward as module
from moray.model.adapter import add_adapter
from moray.model.forward import autocast, blocks_of, common_precision, decoder_of, resolve

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


@pytest.mark.parametrize("architecture", ["Llama", "Llama 4", "Gemma 3 with images", "GPT-2"])
def test_a_decoder_makes_the_states_that_the_output_layer_takes(architecture: str) -> None:
    model = build(PACKED[architecture]())
    tokens, taken = torch.tensor([[1, 2, 3]]), []
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: taken.append(inputs[0]))
    model(input_ids=tokens)
    assert torch.equal(decoder_of(model)(input_ids=tokens).last_hidden_state, taken[0])


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


CPU = torch.device("cpu")


def answering(answer: str) -> Callable[[str, torch.device], str]:
    return lambda precision, device: answer


def be_one_of_two(rank: int, folder: Path) -> None:
    """Write what both agree on where each computes in bf16, the first one, and neither."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    precisions = []
    for with_bf16 in ({0, 1}, {0}, set[int]()):
        module.resolve = answering("bf16" if rank in with_bf16 else "fp32")  # type: ignore[assignment]
        precisions.append(common_precision("auto", CPU))
    (folder / str(rank)).write_text(" ".join(precisions))
    dist.destroy_process_group()


@pytest.mark.long
def test_workers_of_unequal_machines_compute_in_what_all_can(tmp_path: Path) -> None:
    run_forks(be_one_of_two, (tmp_path,), 2)
    assert {(tmp_path / rank).read_text() for rank in "01"} == {"bf16 fp32 fp32"}


def test_auto_is_what_the_processor_computes_in() -> None:
    with open("/proc/cpuinfo") as file:
        flags = file.read()
    has_bf16 = "avx512_bf16" in flags or "amx_bf16" in flags
    assert resolve("auto", CPU) == ("bf16" if has_bf16 else "fp32")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_matrix_products_are_in_the_precision_and_weights_are_not(
    precision: str, dtype: torch.dtype
) -> None:
    linear = torch.nn.Linear(2, 2)
    with autocast(precision, CPU):
        assert linear(torch.ones(1, 2)).dtype == dtype
    assert linear.weight.dtype == torch.float32
