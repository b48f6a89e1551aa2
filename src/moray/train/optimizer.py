"""The optimizer, AdamW: the state that it keeps, the memory that it takes, and its step.

Strategies, checkpoints and checks know its state from here alone. They also check machines before
anything slow starts, so PyTorch is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from moray.config.schema import Train

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

# What is kept for a weight, fp32: tensors of its shape, and numbers of shape ().
MOMENTS = ("exp_avg", "exp_avg_sq")
NUMBERS = ("step",)

# For each trained parameter; a weight's numbers don't count.
STATE_BYTES = 4 * len(MOMENTS)


def make_optimizer(model: nn.Module, settings: Train) -> Optimizer:
    """AdamW (Loshchilov and Hutter, 2019) over all trainable parameters.

    Norms and biases are vectors and are not decayed.
    """
    from torch.optim import AdamW

    trained = trained_parameters(model).values()
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (settings.adam_beta1, settings.adam_beta2)
    filled = [group for group in groups if group["params"]]
    return AdamW(filled, lr=settings.learning_rate, betas=betas, fused=True)


def make_state(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Initialise the state of parameters, as before the first step."""
    import torch

    for parameter in parameters:
        optimizer.state[parameter] = {
            **{key: torch.zeros((), device=parameter.device) for key in NUMBERS},
            **{key: torch.zeros_like(parameter) for key in MOMENTS},
        }


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def take_step(
    model: nn.Module, optimizer: Optimizer, learning_rate: float, max_grad_norm: float
) -> Tensor:
    """Clip, step, and clear the gradients; returns their norm before clipping, shape ().

    On a CPU, no step is taken if the norm is not finite.
    """
    import torch
    from torch.distributed.tensor import DTensor

    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if norm.device.type != "cpu" or torch.isfinite(norm):
        set_learning_rate(optimizer, learning_rate)
        optimizer.step()
    optimizer.zero_grad()
    return norm


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name; tied ones once."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def state_name(weight: str, key: str) -> str:
    """The name that state of a weight has in a checkpoint; no weight's own has a slash."""
    return f"{weight}/{key}"


def is_state(name: str) -> bool:
    """Whether a name in a checkpoint is of optimizer state."""
    return "/" in name


def training_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Weights and their state, by their names in a checkpoint; they share memory with both."""
    state: dict[str, Tensor] = {}
    for name, parameter in trained_parameters(model).items():
        state[name] = parameter.detach()
        for key in (*MOMENTS, *NUMBERS):
            state[state_name(name, key)] = optimizer.state[parameter][key]
    return state
