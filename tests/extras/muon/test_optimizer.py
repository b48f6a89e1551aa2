"""Muon: its step is PyTorch's, wherever tensors are sharded; runs that are killed and moved."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import build
from checkpoints import check_resumption, last_tensors
from engines import check_two_workers
from fleet import losses
from jobs import Make, job_maker
from torch import nn
from torch.optim import AdamW, Muon
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
    ViTConfig,
    ViTForImageClassification,
)

from moray.config.schema.train import Adapter, Train
from moray.errors import UserError
from moray.model.adapter import add_adapter
from moray.train.loop import train
from moray.train.optimizer import Optimizer, block_matrices
from moray.workers.entry import Worker

SETTINGS = Train(
    optimizer="muon",
    learning_rate=1e-2,
    weight_decay=0.5,
    adam_beta1=0.8,
    adam_beta2=0.9,
    max_grad_norm=1e9,
)


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return build(
        LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            attention_bias=True,
        )
    )


def set_gradients(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)


def in_block(name: str, parameter: nn.Parameter) -> bool:
    return ".layers." in name and parameter.dim() == 2


def test_steps_are_those_of_pytorch_s_muon_and_adamw_to_the_bit() -> None:
    model = llama()
    plain = deepcopy(model)
    optimizer = Optimizer(SETTINGS)
    made = optimizer.make(model)
    optimizer.make_state(made, model.parameters())
    named = [*plain.named_parameters()]
    muon = Muon(
        [each for name, each in named if in_block(name, each)],
        weight_decay=0.5,
        adjust_lr_fn="match_rms_adamw",
    )
    others = [each for name, each in named if not in_block(name, each)]
    adamw = AdamW(
        [
            {"params": [each for each in others if each.dim() == 2], "weight_decay": 0.5},
            {"params": [each for each in others if each.dim() < 2], "weight_decay": 0.0},
        ],
        betas=(0.8, 0.9),
        fused=True,
    )
    parts: tuple[torch.optim.Optimizer, ...] = (muon, adamw)
    for step, rate in enumerate((1e-2, 5e-3, 1e-3)):
        for each in (model, plain):
            set_gradients(each, step)
        optimizer.step(model, made, rate)
        for part in parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
        for (name, expected), found in zip(named, model.parameters(), strict=True):
            assert torch.equal(found, expected), name


def test_it_keeps_what_pytorch_keeps_and_counts_its_bytes() -> None:
    model, optimizer = llama(), Optimizer(SETTINGS)
    made = optimizer.make(model)
    optimizer.make_state(made, model.parameters())
    state = optimizer.training_state(model, made)
    matrices = [name for name, each in model.named_parameters() if in_block(name, each)]
    assert {name for name in state if name.endswith("momentum_buffer")} == {
        f"{name}/momentum_buffer" for name in matrices
    }
    trained = sum(each.numel() for each in model.parameters())
    in_matrices = sum(model.get_parameter(name).numel() for name in matrices)
    moments = [value for name, value in state.items() if "/" in name and not name.endswith("step")]
    kept = sum(value.numel() for value in moments) * 4
    assert optimizer.state_bytes(trained, in_matrices) == kept
    assert optimizer.saved_bytes(trained, in_matrices) == kept


def test_a_model_without_blocks_is_refused() -> None:
    model = ViTForImageClassification(
        ViTConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    model.base_model.requires_grad_(False)
    with pytest.raises(UserError, match=r"train.optimizer: muon steps the matrices of transformer"):
        Optimizer(SETTINGS).make(model)


def names_of_matrices(model: PreTrainedModel) -> set[str]:
    matrices = {*block_matrices(model)}
    return {name for name, each in model.named_parameters() if each in matrices}


@pytest.mark.parametrize("config", [BertConfig, ModernBertConfig])
def test_embeddings_that_an_architecture_names_among_its_blocks_are_none(config: Any) -> None:
    settings = config(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    names = names_of_matrices(AutoModelForSequenceClassification.from_config(settings))
    assert names
    assert not [name for name in names if "embeddings" in name]


def test_adapters_of_fused_experts_are_none() -> None:
    """PEFT keeps those of all experts of a layer in one tensor."""
    torch.manual_seed(0)
    model = build(
        Qwen3MoeConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            moe_intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
        )
    )
    add_adapter(model, Adapter(rank=2), seed=0)
    names = names_of_matrices(model)
    assert {name.split(".")[3] for name in names} == {"self_attn"}
    assert len(names) == 8


@pytest.fixture
def make_muon(small: Path, tmp_path: Path) -> Make:
    """Makes jobs with Muon."""
    make = job_maker(small, tmp_path)

    def make_job(work: str, adapter: Adapter | None = None, **settings: Any) -> Any:
        return make(work, adapter, **{"optimizer": "muon", **settings})

    return make_job


@pytest.mark.long
def test_a_killed_run_ends_with_the_same_bits(make_muon: Make, alone: Worker) -> None:
    undisturbed = check_resumption(make_muon, alone, 4)
    usual = make_muon("usual", optimizer="adamw")
    train(usual, alone)
    assert losses(undisturbed)[-1] < losses(undisturbed)[0]
    assert losses(undisturbed) != losses(usual)
    assert any(name.endswith("/momentum_buffer") for name in last_tensors(undisturbed))


@pytest.mark.release
def test_two_workers_have_the_losses_of_one_and_resume_to_the_same_bits(
    make_muon: Make, alone: Worker, tmp_path: Path
) -> None:
    check_two_workers(make_muon, alone, tmp_path, rel=1e-5, adapters=(None, Adapter(rank=4)))
