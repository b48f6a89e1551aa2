"""AdamW's state, by the names of the weights that it belongs to."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = "step"


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name; tied ones once."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def training_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Weights and optimizer state, by name; they share memory with model and optimizer."""
    state: dict[str, Tensor] = {}
    for name, parameter in trained_parameters(model).items():
        state[name] = parameter.detach()
        for key in (*MOMENTS, STEP):
            state[f"{name}/{key}"] = optimizer.state[parameter][key]
    return state


def make_state(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Initialise AdamW's state for parameters, as before its first step."""
    for parameter in parameters:
        optimizer.state[parameter] = {
            STEP: torch.zeros((), device=parameter.device),
            **{key: torch.zeros_like(parameter) for key in MOMENTS},
        }
