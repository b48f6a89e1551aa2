"""Preference losses by plain transformers, with model and reference in memory, an answer at a time.

Of stored rows, the flag 4 marks the tokens of a rejected answer; see `proofs.language` for others.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from moray.config.schema.losses import Preference
from moray.proofs.figures import Figures, rounding_of
from moray.tasks.language.proofs.plain import Piece, log_probabilities, pieces_of

_REJECTED = 4


def figures_of(
    model: Any, reference: Any | None, rows: NDArray[np.void], settings: Preference
) -> Figures:
    """The mean loss of the pairs in some rows; see `loss_of`.

    Args:
        reference: only of losses that have one.
    """
    with torch.no_grad():
        answers = [*answers_of(model, reference, rows)]
    losses, sums, counts = [], [], []
    for now, before, lengths in answers:
        sums += [one.requires_grad_() for one in now]
        losses.append(loss_of(now, before, lengths, settings))
        counts += [2 * length if reference else length for length in lengths]
    loss = torch.stack(losses).mean()
    return Figures(loss.item(), rounding=rounding_of(loss, sums, counts))


def answers_of(
    model: Any, reference: Any | None, rows: NDArray[np.void]
) -> Iterator[tuple[list[Tensor], list[Tensor | float], list[int]]]:
    """Of each pair, what `loss_of` takes of both answers: log-probabilities, and lengths."""
    for pair in pairs_of(rows):
        now = [log_probabilities(model, *answer).sum() for answer in pair]
        before: list[Tensor | float] = [0.0, 0.0]
        if reference:
            with torch.no_grad():
                before = [log_probabilities(reference, *answer).sum() for answer in pair]
        yield now, before, [sum(mask[1:]) for _, mask in pair]


def loss_at_start(settings: Preference) -> float:
    """The loss of a model that equals its reference, if likelihoods have no weight in it."""
    zeros = [torch.zeros((), dtype=torch.float64)] * 2
    return float(loss_of(zeros, zeros, [1, 1], settings))


def loss_of(
    now: Sequence[Tensor],
    before: Sequence[Tensor | float],
    lengths: Sequence[int],
    settings: Preference,
) -> Tensor:
    """The loss of a pair, shape ().

    Sources: those of `losses.preference_losses`, each formula written out.

    Args:
        now: log-probability of the chosen and of the rejected answer, nats, each of shape ().
        before: the same under the reference.
        lengths: number of tokens of both.
    """
    beta, smoothing = settings.beta, settings.label_smoothing
    chosen, rejected = (one - other for one, other in zip(now, before, strict=True))
    mean_chosen, mean_rejected = chosen / lengths[0], rejected / lengths[1]
    match settings.loss:
        case "dpo" | "cpo":
            margin = beta * (chosen - rejected)
            loss = (1 - smoothing) * F.softplus(-margin) + smoothing * F.softplus(margin)
        case "robust":
            margin = beta * (chosen - rejected)
            loss = (1 - smoothing) * F.softplus(-margin) - smoothing * F.softplus(margin)
            loss = loss / (1 - 2 * smoothing)
        case "hinge":
            loss = (1 - beta * (chosen - rejected)).clamp(min=0)
        case "ipo":
            loss = (mean_chosen - mean_rejected - 1 / (2 * beta)) ** 2
        case "sigmoid_norm":
            loss = F.softplus(-beta * (mean_chosen - mean_rejected))
        case "simpo":
            margin = beta * mean_chosen - beta * mean_rejected - settings.simpo_gamma
            loss = (1 - smoothing) * F.softplus(-margin) + smoothing * F.softplus(margin)
        case "orpo":
            odds = [p / (1 - p) for p in (mean_chosen.exp(), mean_rejected.exp())]
            loss = beta * F.softplus(-(odds[0].log() - odds[1].log()))
    by_default = 1.0 if settings.loss in ("cpo", "orpo") else 0.0
    weight = by_default if settings.rpo_alpha is None else settings.rpo_alpha
    return loss - weight * now[0] / lengths[0]


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
