"""AdamW with weight decay only for matrices, and its step."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from moray.config.schema import Train


def make_optimizer(model: nn.Module, settings: Train) -> AdamW:
    """AdamW (Loshchilov and Hutter, 2019) over all trainable parameters.

    Norms and biases are vectors and are not decayed.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (settings.adam_beta1, settings.adam_beta2)
    filled = [group for group in groups if group["params"]]
    return AdamW(filled, lr=settings.learning_rate, betas=betas, fused=True)


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
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if norm.device.type != "cpu" or torch.isfinite(norm):
        set_learning_rate(optimizer, learning_rate)
        optimizer.step()
    optimizer.zero_grad()
    return norm
