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


def losses(model: Any, reference: Any, rows: NDArray[np.void], settings: Kto) -> Iterator[Tensor]:
    """The loss of each answer in some rows, each of shape (), with the KL divergence of all."""
    ratios, apart = [], []
    for answer, other in pairs_of(rows):
        with torch.no_grad():
            known = [log_probabilities(reference, *piece).sum() for piece in (answer, other)]
            apart.append(float(log_probabilities(model, *other).sum() - known[1]))
        ratios.append(log_probabilities(model, *answer).sum() - known[0])
    return losses_of(ratios, labels_of(rows), apart, settings)


def losses_of(
    ratios: Sequence[Tensor], labels: Sequence[bool], apart: Sequence[float], settings: Kto
) -> Iterator[Tensor]:
    """The loss of each answer, each of shape (); the formula is written out.

    Args:
        ratios: log-probability of each answer minus that under the reference, nats, of shape ().
        labels: whether each is good.
        apart: the same as ratios, of other documents' answers to the same prompts.
    """
    kl = max(0.0, sum(apart) / len(apart))
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
