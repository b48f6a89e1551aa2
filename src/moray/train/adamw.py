"""AdamW's step of what a worker has of a tensor, for optimizers that step one by one."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from moray.train.optimizer import Moment


def local_shard(tensor: Tensor) -> Tensor:
    """What this worker has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def step_shard(
    weights: Tensor,
    gradients: Tensor,
    mean: Tensor | Moment,
    square: Tensor | Moment,
    step: int,
    group: Mapping[str, Any],
) -> None:
    """Take a step of AdamW.

    Args:
        weights: fp32, shape (elements,), as the rest.
        step: number of the step, from 1.
    """
    # Of a small tensor, some workers have nothing.
    if not len(weights):
        return
    if isinstance(mean, Tensor) or isinstance(square, Tensor):
        assert isinstance(mean, Tensor)
        assert isinstance(square, Tensor)
        _step_in_fp32(weights, gradients, mean, square, step, group)
    else:
        mean.step(square, weights, gradients, step, group)


def _step_in_fp32(
    weights: Tensor,
    gradients: Tensor,
    means: Tensor,
    squares: Tensor,
    step: int,
    group: Mapping[str, Any],
) -> None:
    beta1, beta2 = group["betas"]
    # It adds one.
    before = torch.full((), step - 1.0, device=weights.device)
    adamw(
        [weights],
        [gradients],
        [means],
        [squares],
        [],
        [before],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
