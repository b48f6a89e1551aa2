"""Adafactor: its step is PyTorch's, wherever tensors lie; runs that are killed and moved."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import check_resumption, last_tensors
from engines import check_two_workers
from fleet import losses
from jobs import Make, job_maker
from torch import nn
from torch.optim import Adafactor

from moray.config.schema.train import Adapter, Train
from moray.train.optimizer import Optimizer
from moray.workers.entry import Worker

SETTINGS = Train(optimizer="adafactor", learning_rate=0.1, weight_decay=0.5, max_grad_norm=1e9)


class Layers(nn.Module):
    """A matrix, a vector, and a tensor of three dimensions, as experts are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(12, 20)
        self.experts = nn.Parameter(torch.randn(3, 8, 6))


def test_steps_are_those_of_pytorch_to_the_bit_and_its_state_counts_for_nothing() -> None:
    model = Layers()
    plain = deepcopy(model)
    optimizer = Optimizer(SETTINGS)
    made = optimizer.make(model)
    optimizer.make_state(made, model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [plain.linear.weight, plain.experts], "weight_decay": 0.5},
        {"params": [plain.linear.bias]},
    ]
    expected: torch.optim.Optimizer = Adafactor(groups)
    for step, rate in enumerate((0.1, 0.05, 0.01)):
        for each in (model, plain):
            torch.manual_seed(step)
            for parameter in each.parameters():
                parameter.grad = torch.randn_like(parameter)
        optimizer.step(model, made, rate)
        for group in expected.param_groups:
            group["lr"] = rate
        expected.step()
        for found, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(found, other)
    state = optimizer.training_state(model, made)
    kept = {name: value.numel() for name, value in state.items() if "/" in name}
    assert kept == {
        "linear.weight/step": 1,
        "linear.weight/row_var": 20,
        "linear.weight/col_var": 12,
        "linear.bias/step": 1,
        "linear.bias/variance": 20,
        "experts/step": 1,
        "experts/row_var": 24,
        "experts/col_var": 18,
    }
    assert optimizer.state_bytes(1_000_000, 500_000) == 0


@pytest.fixture
def make_adafactor(small: Path, tmp_path: Path) -> Make:
    """Makes jobs with Adafactor."""
    make = job_maker(small, tmp_path)

    def make_job(work: str, adapter: Adapter | None = None, **settings: Any) -> Any:
        rate = {"optimizer": "adafactor", "learning_rate": 0.1}
        return make(work, adapter, **rate | settings)

    return make_job


@pytest.mark.long
def test_a_killed_run_ends_with_the_same_bits(make_adafactor: Make, alone: Worker) -> None:
    undisturbed = check_resumption(make_adafactor, alone, 4)
    assert losses(undisturbed)[-1] < losses(undisturbed)[0]
    assert any(name.endswith("/row_var") for name in last_tensors(undisturbed))


@pytest.mark.release
def test_two_workers_have_the_losses_of_one_and_resume_to_the_same_bits(
    make_adafactor: Make, alone: Worker, tmp_path: Path
) -> None:
    check_two_workers(make_adafactor, alone, tmp_path, rel=1e-5)
