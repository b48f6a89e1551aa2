"""AdamW's groups."""

import pytest
import torch
from torch import nn

from moray.config.schema import Train
from moray.train.optimizer import make_optimizer


def test_decays_matrices_and_leaves_vectors() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = make_optimizer(model, Train(learning_rate=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        # With a gradient of zero, all that AdamW does is to decay by rate times decay.
        expected = old * (1 - 0.1 * 0.5) if old.dim() == 2 else old
        torch.testing.assert_close(new.detach(), expected)


def test_leaves_frozen_parameters_out() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    groups = make_optimizer(model, Train()).param_groups
    assert [parameter for group in groups for parameter in group["params"]] == [model.weight]


def test_takes_the_configs_betas() -> None:
    optimizer = make_optimizer(nn.Linear(2, 2), Train(adam_beta1=0.8, adam_beta2=0.9))
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.8, 0.9))
