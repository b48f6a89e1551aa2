"""Losses of a linear output layer, without storing all of its logits at once."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Rows per chunk: 16 MB of logits in bf16 for a vocabulary of 8,192.
_ROWS_AT_ONCE = 1024

# From logits and targets to losses in nats and probabilities; see `softmax_loss`.
SoftmaxLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def softmax_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses, fp32, shape (rows,), and probabilities, with the shape and type of the logits."""
    logs = torch.log_softmax(logits, -1, dtype=torch.float32)
    losses = -logs.gather(1, targets.unsqueeze(1)).squeeze(1)
    return losses, logs.exp().to(logits.dtype)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    counted: int,
    softmax: SoftmaxLoss = softmax_loss,
) -> Tensor:
    """Sum of the negative log-likelihoods of targets under `softmax(hidden @ weight.T)`.

    The forward pass also computes the gradients, chunk by chunk, while a chunk's logits are in
    memory; the backward pass only scales them. Sources: Hsu et al., "Liger Kernel", 2024; Wijmans
    et al., "Cut Your Losses in Large-Vocabulary Language Models", 2025.

    Args:
        hidden: states, shape (rows, width).
        weight: weight of the output layer, shape (vocabulary, width).
        targets: indices of the target tokens, shape (rows,).
        counted: number of rows that count, from the first; the rest are padding.
        softmax: `softmax_loss`, or a compiled form of it.

    Returns:
        Sum in nats, fp32, shape ().
    """
    apply: Callable[..., Tensor] = _LinearCrossEntropy.apply
    return apply(hidden, weight, targets, counted, softmax)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        counted: int,
        softmax: SoftmaxLoss,
    ) -> Tensor:
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        kind = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        states, matrix = hidden.to(kind), weight.to(kind)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        by_hidden = torch.zeros_like(states) if wants_hidden else None
        by_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        total = torch.zeros((), device=hidden.device)
        for start in range(0, counted, _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            losses, gradient = softmax(states[rows] @ matrix.T, targets[rows])
            total += losses[: counted - start].sum()
            if by_hidden is None and by_weight is None:
                continue
            # The gradient at the target is p - 1, computed from the loss: a probability near one,
            # rounded to bf16, would give zero.
            slope = torch.expm1(-losses).to(kind)
            # `scatter_` of bf16 on a CPU takes a quarter as long as the logits' matrix product.
            gradient[torch.arange(len(slope), device=slope.device), targets[rows]] = slope
            gradient[counted - start :] = 0
            if by_hidden is not None:
                torch.mm(gradient, matrix, out=by_hidden[rows])
            if by_weight is not None:
                by_weight += gradient.T @ states[rows]
        ctx.kinds = hidden.dtype, weight.dtype
        ctx.save_for_backward(by_hidden, by_weight)
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (
            None if gradient is None else (gradient * scale).to(kind)
            for gradient, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)
        )
        return *gradients, None, None, None


def linear_log_probabilities(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of each target under `softmax(hidden @ weight.T)`.

    Chunk by chunk; the backward pass computes a chunk's logits again, because the gradient of a
    log-probability is only known once all of them are.

    Args:
        hidden: states, shape (rows, width).
        weight: weight of the output layer, shape (vocabulary, width).
        targets: indices of the target tokens, shape (rows,).

    Returns:
        Nats, fp32, shape (rows,).
    """
    # At least one chunk, even if it is empty: workers that shard a model need the same gradients.
    starts = range(0, max(1, len(hidden)), _ROWS_AT_ONCE)
    chunks = (slice(start, start + _ROWS_AT_ONCE) for start in starts)
    return torch.cat([_chunk(hidden[rows], weight, targets[rows]) for rows in chunks])


def _chunk(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    made: Tensor = checkpoint(_log_probabilities, hidden, weight, targets, use_reentrant=False)
    return made


def _log_probabilities(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(hidden, weight).float()
    return -F.cross_entropy(logits, targets, reduction="none")
