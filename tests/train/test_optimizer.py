"""AdamW's groups and its step."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from architectures import HYBRID, UNPACKED, build
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from torch import Tensor, nn
from torch.optim import AdamW

from moray.config.schema.train import Train
from moray.train.optimizer import Optimizer, set_learning_rate


def test_decays_matrices_and_leaves_vectors() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = Optimizer(Train(learning_rate=0.1, weight_decay=0.5)).make(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        # With a gradient of zero, all that AdamW does is to decay by rate times decay.
        expected = old * (1 - 0.1 * 0.5) if old.dim() == 2 else old
        torch.testing.assert_close(new.detach(), expected)


@pytest.mark.parametrize(
    ("name", "spared"),
    [
        ("gpt-oss", {"gate_up_proj_bias", "down_proj_bias", "bias", "sinks"}),
        ("Mamba", {"A_log", "D", "bias"}),
        ("RecurrentGemma", {"input_gate_bias", "recurrent_gate_bias", "recurrent_param", "bias"}),
    ],
)
def test_biases_and_rates_of_states_are_not_decayed_whatever_their_shape(
    name: str, spared: set[str]
) -> None:
    model = build((UNPACKED | HYBRID)[name]())
    groups = Optimizer(Train(weight_decay=0.1)).make(model).param_groups
    decayed = {id(one) for group in groups if group["weight_decay"] for one in group["params"]}
    for path, parameter in model.named_parameters():
        own = path.rpartition(".")[2]
        norm = own == "weight" and "norm" in path
        assert (id(parameter) in decayed) == (own not in spared and not norm), path


def test_leaves_frozen_parameters_out() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    groups = Optimizer(Train()).make(model).param_groups
    assert [parameter for group in groups for parameter in group["params"]] == [model.weight]


def test_takes_the_configs_betas() -> None:
    optimizer = Optimizer(Train(adam_beta1=0.8, adam_beta2=0.9)).make(nn.Linear(2, 2))
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.8, 0.9))


def test_vectors_alone_can_be_trained() -> None:
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    groups = Optimizer(Train(weight_decay=0.1)).make(model).param_groups
    assert [(group["params"], group["weight_decay"]) for group in groups] == [([model.bias], 0.0)]


def test_the_rate_is_set_for_matrices_and_for_vectors() -> None:
    optimizer = Optimizer(Train()).make(nn.Linear(2, 2))
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def with_gradients(scale: float) -> nn.Linear:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    for parameter in model.parameters():
        parameter.grad = scale * torch.randn_like(parameter)
    return model


def adamw_by_hand(parameter: Tensor, gradient: Tensor, rate: float, decay: float) -> Tensor:
    """AdamW's first step, by the paper's algorithm 2 with the betas 0.9 and 0.95."""
    mean, square = 0.1 * gradient / (1 - 0.9), 0.05 * gradient**2 / (1 - 0.95)
    return parameter - rate * (mean / (square.sqrt() + 1e-8) + decay * parameter)


@pytest.mark.parametrize("max_grad_norm", [1e-8, 0.5, 1e3])
def test_a_step_is_adamw_s_of_clipped_gradients(max_grad_norm: float) -> None:
    model = with_gradients(1.0)
    before = deepcopy(model)
    gradients = [p.grad.double().clone() for p in model.parameters() if p.grad is not None]
    whole = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    settings = Train(learning_rate=5.0, weight_decay=0.5, max_grad_norm=max_grad_norm)
    optimizer = Optimizer(settings)
    norm = optimizer.step(model, optimizer.make(model), 0.1)
    assert norm.shape == ()
    assert norm.item() == pytest.approx(whole.item(), rel=1e-5)
    scale = min(1.0, max_grad_norm / (whole.item() + 1e-6))
    for old, new, gradient in zip(before.parameters(), model.parameters(), gradients, strict=True):
        decay = 0.5 if old.dim() == 2 else 0.0
        expected = adamw_by_hand(old.double(), scale * gradient, 0.1, decay)
        torch.testing.assert_close(new.double(), expected, rtol=1e-5, atol=1e-6)
        assert new.grad is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_step_is_taken_where_a_gradient_is_not_finite(value: float) -> None:
    model = with_gradients(1.0)
    before = deepcopy(model.state_dict())
    assert model.bias.grad is not None
    model.bias.grad[1] = value
    optimizer = Optimizer(Train())
    assert not optimizer.step(model, optimizer.make(model), 0.1).isfinite()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_keeps_for_a_weight_what_pytorch_keeps_and_counts_its_bytes() -> None:
    model, optimizer = with_gradients(1.0), Optimizer(Train())
    made, initialised = optimizer.make(model), optimizer.make(model)
    optimizer.make_state(initialised, model.parameters())
    made.step()
    for parameter in model.parameters():
        kept, expected = initialised.state[parameter], made.state[parameter]
        assert kept.keys() == expected.keys() == {*optimizer.moments, *optimizer.numbers}
        for name, value in expected.items():
            assert (kept[name].shape, kept[name].dtype) == (value.shape, value.dtype)
            assert not kept[name].any()
        moments = sum(expected[name].nbytes for name in optimizer.moments)
        assert moments == optimizer.state_bytes(parameter.numel(), 0)
        assert all(expected[name].shape == () for name in optimizer.numbers)


def test_lora_plus_is_that_of_peft() -> None:
    def adapted() -> Any:
        torch.manual_seed(0)
        config = LoraConfig(r=2, target_modules=["0", "1"], init_lora_weights=False)
        return get_peft_model(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), config)

    def stepped(model: Any, step: Callable[[], object]) -> list[Tensor]:
        model(torch.ones(2, 3)).square().sum().backward()
        step()
        return [one.detach() for one in model.parameters() if one.requires_grad]

    ours, theirs = adapted(), adapted()
    optimizer = Optimizer(Train(loraplus_lr_ratio=16, weight_decay=0.1, max_grad_norm=1e9))
    made = optimizer.make(ours)
    plus = create_loraplus_optimizer(
        theirs,
        AdamW,
        lr=0.01,
        loraplus_lr_ratio=16,
        loraplus_weight_decay=0.1,
        betas=(0.9, optimizer._settings.adam_beta2),
    )
    found = stepped(ours, lambda: optimizer.step(ours, made, 0.01))
    assert found != []
    for one, right in zip(found, stepped(theirs, plus.step), strict=True):
        torch.testing.assert_close(one, right)
    set_learning_rate(made, 0.5)
    rates = {group["lr"]: len(group["params"]) for group in made.param_groups}
    assert rates == {0.5: 2, 8.0: 2}
