"""The loss of answers that are good or bad, by their log-probabilities.

Source: Ethayarajh et al., "KTO: Model Alignment as Prospect Theoretic Optimization", 2024,
equation 8; the estimate of the KL divergence is that of section 4.1. Names are those of TRL.
"""

import torch
from torch import Tensor

from moray.config.schema.losses import Kto


def kto_losses(ratios: Tensor, desirable: Tensor, kl: Tensor, settings: Kto) -> Tensor:
    """Loss of each answer, shape (answers,).

    Args:
        ratios: log-probability of each answer minus that under the reference, nats.
        desirable: whether each is good.
        kl: the estimate of `kl_of`, shape ().
    """
    gains = settings.beta * (ratios - kl)
    good = settings.desirable_weight * torch.sigmoid(-gains)
    bad = settings.undesirable_weight * torch.sigmoid(gains)
    return torch.where(desirable, good, bad)


def kl_of(total: Tensor, count: float) -> Tensor:
    """The estimate of the KL divergence, from a sum of ratios of other documents' answers."""
    return (total / count).clamp(min=0)
