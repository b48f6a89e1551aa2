"""Losses of words with tags by plain transformers, one text at a time and without padding."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moray.proofs.figures import Figures
from moray.tasks.classification import proofs
from moray.tasks.classification.proofs import inputs_of, with_norm
from moray.tasks.language.proofs import plain

load = partial(proofs.load, of_words=True)


def mean(model: Any, rows: NDArray[np.void]) -> Tensor:
    """The mean loss of the words of stored rows, shape (), as the model itself computes it."""
    words = np.count_nonzero(rows["labels"])
    losses = []
    for row in rows:
        if own := np.count_nonzero(row["labels"]):
            labels = row["labels"][: int(row["length"])].astype(np.int64) - 1
            labels[labels < 0] = -100
            given = torch.from_numpy(labels[None]).to(model.device)
            loss = model(**inputs_of(row, model.device), labels=given).loss.float()
            losses.append(loss * (own / words))
    return torch.stack(losses).sum()


def draws(model: Any) -> bool:
    """Whether a model draws something in training; layers have dropout that no config names."""
    dropout = (one for one in model.modules() if isinstance(one, torch.nn.Dropout))
    return plain.draws(model) or any(one.p > 0 for one in dropout)


def mean_loss(folder: Path, rows: NDArray[np.void], device: torch.device) -> float:
    """The mean loss of the words of stored rows with the model in a folder."""
    with torch.no_grad():
        return float(mean(load(folder).to(device), rows))


def figures_of(model: Any, rows: NDArray[np.void], gradient: bool) -> Figures:
    """The mean loss of the words of stored rows, and the norm of its gradient by all weights."""
    with torch.set_grad_enabled(gradient):
        loss = mean(model, rows)
    return with_norm(model, loss, gradient)
