"""Log-probabilities of tokens under a linear output layer, without storing all of its logits."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Rows per chunk: 16 MB of logits in bf16 for a vocabulary of 8,192.
_ROWS_AT_ONCE = 1024


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
