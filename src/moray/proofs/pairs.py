"""Preference losses by plain transformers, with model and reference in memory, an answer at a time.

Of stored rows, the flag 4 marks the tokens of a rejected answer; see `proofs.language` for others.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from moray.proofs.language import log_probabilities, pieces_of

_REJECTED = 4


def mean_loss(
    model: Any,
    reference: Any,
    rows: NDArray[np.void],
    kind: str,
    beta: float,
    smoothing: float,
) -> float:
    """Mean over the pairs of some rows; see `loss_of`."""
    losses = []
    for pair in _pairs_of(rows):
        ratios = []
        for tokens, mask in pair:
            with torch.no_grad():
                now, before = (
                    log_probabilities(one, tokens, mask).sum() for one in (model, reference)
                )
            length = sum(mask[1:]) if kind == "ipo" else 1
            ratios.append(float(now - before) / length)
        losses.append(loss_of(ratios[0], ratios[1], kind, beta, smoothing))
    return sum(losses) / len(losses)


def loss_of(chosen: float, rejected: float, kind: str, beta: float, smoothing: float) -> float:
    """The loss of a pair.

    Sources: Rafailov et al., "Direct Preference Optimization", 2023, equation 7; Azar et al., "A
    general theoretical paradigm to understand learning from human preferences", 2023, equation 17.

    Args:
        chosen: log-probability of the chosen answer under the model minus that under the
            reference, nats; of `ipo`, a mean over its tokens.
        rejected: the same of the rejected one.
        kind: `dpo` or `ipo`.
    """
    if kind == "ipo":
        return (chosen - rejected - 1 / (2 * beta)) ** 2
    margin = torch.tensor(beta * (chosen - rejected), dtype=torch.float64)
    return float((1 - smoothing) * F.softplus(-margin) + smoothing * F.softplus(margin))


def _pairs_of(rows: NDArray[np.void]) -> Iterator[tuple[Any, Any]]:
    """Both answers of each pair: a rejected one follows its chosen one."""
    for row in rows:
        halves = []
        for flag in (0, _REJECTED):
            one = np.array([row])
            other = (one["flags"] & _REJECTED) != flag
            # The pieces of the other kind keep their place, and have no trained token.
            one["flags"][other] &= 2
            halves.append(list(pieces_of(one)))
        yield from zip(*halves, strict=True)
