"""The loss of answers by plain transformers, with model and reference, an answer at a time.

Of stored rows, the flag 4 marks the tokens of another document's answer, and 8 those of a good one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moray.config.schema.losses import Kto
from moray.proofs.figures import Figures, rounding_of
from moray.tasks.language.proofs.plain import log_probabilities
from moray.tasks.preference.proofs import pairs_of

_FIRST, _OTHER, _DESIRABLE = 2, 4, 8


def labels_of(rows: NDArray[np.void]) -> list[bool]:
    """Whether each answer in some rows is good."""
    labels: list[bool] = []
    for row in rows:
        flags = row["flags"]
        first = flags[flags & _FIRST > 0]
        count = int((first & _OTHER > 0).sum())
        labels += [bool(flag & _DESIRABLE) for flag in first[:count]]
    return labels


def figures_of(model: Any, reference: Any, rows: NDArray[np.void], settings: Kto) -> Figures:
    """The mean loss of the answers in some rows, with the KL divergence of all."""
    with torch.no_grad():
        ratios, apart = ratios_of(model, reference, rows)
    sums = [one.requires_grad_() for one in (*ratios, *apart)]
    loss = torch.stack([*losses_of(ratios, labels_of(rows), apart, settings)]).mean()
    pieces = [*zip(*pairs_of(rows), strict=True)]
    # Both models round.
    counts = [2 * sum(mask[1:]) for kind in pieces for _, mask in kind]
    return Figures(loss.item(), rounding=rounding_of(loss, sums, counts))


def ratios_of(
    model: Any, reference: Any, rows: NDArray[np.void]
) -> tuple[list[Tensor], list[Tensor]]:
    """What `losses_of` takes: of each answer, and of the other document's one beside it."""
    ratios, apart = [], []
    for answer, other in pairs_of(rows):
        with torch.no_grad():
            known = [log_probabilities(reference, *piece).sum() for piece in (answer, other)]
            apart.append(log_probabilities(model, *other).sum() - known[1])
        ratios.append(log_probabilities(model, *answer).sum() - known[0])
    return ratios, apart


def losses_of(
    ratios: Sequence[Tensor], labels: Sequence[bool], apart: Sequence[Tensor], settings: Kto
) -> Iterator[Tensor]:
    """The loss of each answer, each of shape (); the formula is written out.

    Args:
        ratios: log-probability of each answer minus that under the reference, nats, of shape ().
        labels: whether each is good.
        apart: the same as ratios, of other documents' answers to the same prompts.
    """
    kl = torch.stack([*apart]).mean().clamp(min=0)
    for ratio, good in zip(ratios, labels, strict=True):
        if good:
            yield settings.desirable_weight * (1 - torch.sigmoid(settings.beta * (ratio - kl)))
        else:
            yield settings.undesirable_weight * (1 - torch.sigmoid(settings.beta * (kl - ratio)))


def loss_at_start(labels: Sequence[bool], settings: Kto) -> float:
    """The mean loss of answers under a model that equals its reference."""
    good = sum(labels)
    bad = len(labels) - good
    total = settings.desirable_weight * good + settings.undesirable_weight * bad
    return total / len(labels) / 2
