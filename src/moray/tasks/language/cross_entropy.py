"""Losses of a linear output layer, without storing all of its logits at once."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Rows per chunk on a CPU: 16 MB of logits in bf16 for a vocabulary of 8,192.
_CPU_ROWS = 1024
# A GPU needs more rows to be busy. Constants, never the memory that is free, decide: a resumed run
# has to compute as before.
_GPU_CHUNK_BYTES = 2**30
_MOST_GPU_ROWS = 16_384
# If rows of logits don't begin at a multiple of 128 bytes, cuBLAS takes kernels that are two to
# three times slower; the vocabulary of GPT-2, for example, is odd.
_GPU_ALIGNMENT = 64

# From logits and targets to losses in nats and probabilities; see `softmax_loss`.
SoftmaxLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def softmax_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses, fp32, shape (rows,), and probabilities, with the shape and type of the logits."""
    logs = torch.log_softmax(logits, -1, dtype=torch.float32)
    return -_at(logs, targets), logs.exp().to(logits.dtype)


def _at(values: Tensor, targets: Tensor) -> Tensor:
    """The value of each row at its target."""
    return values.gather(1, targets.unsqueeze(1)).squeeze(1)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    num_counted: int,
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
        num_counted: number of rows that count, from the first; the rest are padding.
        softmax: `softmax_loss`, or a compiled form of it.

    Returns:
        Sum in nats, fp32, shape ().
    """
    apply: Callable[..., Tensor] = _LinearCrossEntropy.apply
    return apply(hidden, weight, targets, num_counted, softmax)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        num_counted: int,
        softmax: SoftmaxLoss,
    ) -> Tensor:
        device = hidden.device.type
        # The memory plan computes on `meta`, where there is no autocast.
        autocast = device != "meta" and torch.is_autocast_enabled(device)
        kind = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        states, matrix = hidden.to(kind), _align(weight.to(kind))
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        by_hidden = torch.zeros_like(states) if wants_hidden else None
        by_weight = torch.zeros_like(matrix, dtype=torch.float32) if wants_weight else None
        total = torch.zeros((), device=hidden.device)
        for rows in chunks_of(num_counted, matrix):
            start = rows.start
            losses, gradient = softmax(_logits(states[rows], matrix, len(weight)), targets[rows])
            total += losses[: num_counted - start].sum()
            if by_hidden is None and by_weight is None:
                continue
            # The gradient at the target is p - 1, computed from the loss: a probability near one,
            # rounded to bf16, would give zero.
            slope = torch.expm1(-losses).to(kind)
            # `scatter_` of bf16 on a CPU takes a quarter as long as the logits' matrix product.
            gradient[torch.arange(len(slope), device=slope.device), targets[rows]] = slope
            gradient[num_counted - start :] = 0
            if by_hidden is not None:
                torch.mm(gradient, matrix, out=by_hidden[rows])
            if by_weight is not None:
                _add_product(by_weight, gradient.T, states[rows])
        ctx.kinds = hidden.dtype, weight.dtype
        ctx.save_for_backward(by_hidden, None if by_weight is None else by_weight[: len(weight)])
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (
            None if gradient is None else (gradient * scale).to(kind)
            for gradient, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)
        )
        return *gradients, None, None, None


def _alignment(device: torch.device) -> int:
    return 1 if device.type == "cpu" else _GPU_ALIGNMENT


def _align(weight: Tensor) -> Tensor:
    """On a GPU, an output layer's weight with rows of zeros up to a multiple; see `_logits`."""
    missing = -len(weight) % _alignment(weight.device)
    return F.pad(weight, (0, 0, 0, missing)) if missing else weight


def _logits(states: Tensor, matrix: Tensor, vocabulary: int) -> Tensor:
    """Logits, minus infinity for what `_align` has added to a vocabulary."""
    logits = states @ matrix.T
    if len(matrix) > vocabulary:
        logits[:, vocabulary:] = -torch.inf
    return logits


def chunks_of(rows: int, matrix: Tensor) -> list[slice]:
    """Rows whose logits, of the matrix's type, are in memory at the same time."""
    size = _CPU_ROWS
    if matrix.device.type != "cpu":
        size = _GPU_CHUNK_BYTES // (len(matrix) * matrix.element_size())
        # A power of two, so that rows of a power of two tokens leave no small rest.
        size = min(_MOST_GPU_ROWS, 1 << max(0, size.bit_length() - 1))
    return [slice(start, start + size) for start in range(0, rows, size)]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a matrix product to `total`, fp32; on CUDA without rounding the product first."""
    if total.is_cuda and torch.version.hip is None:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += left @ right


def linear_log_probabilities(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of each target under `softmax(hidden @ weight.T)`.

    Chunk by chunk; the backward pass computes a chunk's logits again, because the gradient of a
    log-probability is only known once all of them are.

    Returns:
        Nats, fp32, shape (rows,); for the arguments see `linear_cross_entropy`.
    """
    # At least one chunk, even if it is empty: workers that shard a model need the same gradients.
    chunks = chunks_of(max(1, len(hidden)), weight)
    again = partial(checkpoint, _log_probabilities, use_reentrant=False)
    return torch.cat([again(hidden[rows], weight, targets[rows]) for rows in chunks])


def _log_probabilities(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(hidden, weight).float()
    return -F.cross_entropy(logits, targets, reduction="none")


def linear_scores(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each target under `softmax(hidden @ weight.T)`, and whether it is the likeliest.

    Chunk by chunk, without gradients.

    Returns:
        Nats, fp32, and bools, both of shape (rows,); for the arguments see `linear_cross_entropy`.
    """
    losses = torch.empty(len(hidden), device=hidden.device)
    hits = torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
    for rows, logits in logits_by_chunk(hidden, weight):
        losses[rows], hits[rows] = target_scores(logits, targets[rows])
    return losses, hits


def logits_by_chunk(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows, and `hidden @ weight.T` of these rows; in all, each once."""
    matrix = _align(weight)
    for rows in chunks_of(len(hidden), matrix):
        yield rows, _logits(hidden[rows], matrix, len(weight))


def target_scores(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each target, nats, fp32, and whether it is the likeliest, both of shape (rows,)."""
    # `cross_entropy` would copy the logits to fp32 first.
    logs = torch.log_softmax(logits, -1, dtype=torch.float32)
    return -_at(logs, targets), logits.argmax(-1) == targets
