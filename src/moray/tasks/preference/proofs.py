"""Preference losses by plain transformers, with model and reference in memory, an answer at a time.

Of stored rows, the flag 4 marks the tokens of a rejected answer; see `proofs.language` for others.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from moray.tasks.language.proofs.plain import Piece, log_probabilities, pieces_of

_REJECTED = 4


def losses(
    model: Any, reference: Any, rows: NDArray[np.void], kind: str, beta: float, smoothing: float
) -> Iterator[Tensor]:
    """The loss of each pair in some rows, nats, shape (); see `loss_of`."""
    for pair in pairs_of(rows):
        ratios = []
        for tokens, mask in pair:
            now = log_probabilities(model, tokens, mask).sum()
            with torch.no_grad():
                before = log_probabilities(reference, tokens, mask).sum()
            ratios.append((now - before) / (sum(mask[1:]) if kind == "ipo" else 1))
        yield loss_of(ratios[0] - ratios[1], kind, beta, smoothing)


def loss_of(difference: Tensor, kind: str, beta: float, smoothing: float) -> Tensor:
    """The loss of a pair, shape ().

    Sources: Rafailov et al., "Direct Preference Optimization", 2023, equation 7; Mitchell, "A note
    on DPO with noisy preferences and relationship to IPO", 2023; Azar et al., "A general
    theoretical paradigm to understand learning from human preferences", 2023, equation 17.

    Args:
        difference: log-probability of the chosen answer under the model minus that under the
            reference, minus the same of the rejected one, nats, shape (); of `ipo`, of means over
            an answer's tokens.
        kind: `dpo` or `ipo`.
    """
    if kind == "ipo":
        return (difference - 1 / (2 * beta)) ** 2
    margin = beta * difference
    return (1 - smoothing) * F.softplus(-margin) + smoothing * F.softplus(margin)


def pairs_of(rows: NDArray[np.void]) -> Iterator[tuple[Piece, Piece]]:
    """Both answers of each pair in some rows; a rejected one follows its chosen one."""
    for row in rows:
        halves = []
        for flag in (0, _REJECTED):
            one = np.array([row])
            other = (one["flags"] & _REJECTED) != flag
            # The pieces of the other kind keep their place, and have no trained token.
            one["flags"][other] &= 2
            halves.append(list(pieces_of(one)))
        yield from zip(*halves, strict=True)
