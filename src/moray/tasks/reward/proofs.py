"""Losses of pairs by plain transformers, one text at a time and without padding."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from moray.proofs.figures import Figures
from moray.tasks.classification.proofs import TOKENS as TOKENS_OF_TEXT
from moray.tasks.classification.proofs import load

TOKENS = 2 * TOKENS_OF_TEXT
"""A pair takes a model about as much as so many tokens take a language model."""


def losses(model: Any, rows: NDArray[np.void], coefficient: float | None) -> list[Tensor]:
    """The loss of each stored pair, shape ()."""
    found = []
    for row in rows[rows["length"][:, 0] > 0]:
        rewards = []
        for place, length in enumerate(row["length"].tolist()):
            tokens = torch.from_numpy(row["tokens"][place, :length].astype(np.int64)[None])
            rewards.append(model(input_ids=tokens.to(model.device)).logits.float().squeeze())
        margin = rewards[0] - rewards[1] - float(row["margin"])
        loss = F.softplus(-margin)
        found.append(loss if coefficient is None else loss + coefficient * sum(rewards) ** 2)
    return found


def mean_loss(
    folder: Path, rows: NDArray[np.void], device: torch.device, coefficient: float | None
) -> float:
    """The mean loss of stored pairs with the model in a folder."""
    return figures_of(load(folder).to(device), rows, coefficient, gradient=False).loss


def figures_of(
    model: Any, rows: NDArray[np.void], coefficient: float | None, gradient: bool
) -> Figures:
    """The mean loss of stored pairs, and the norm of its gradient by all weights."""
    with torch.set_grad_enabled(gradient):
        loss = torch.stack(losses(model, rows, coefficient)).mean()
    if not gradient:
        return Figures(loss.item())
    torch.autograd.backward(loss)
    squares = (p.grad.double().square().sum() for p in model.parameters() if p.grad is not None)
    return Figures(loss.item(), math.sqrt(sum(map(float, squares))))
