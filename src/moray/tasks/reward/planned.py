"""A reward model without weights and rows, for the plan of its memory."""

from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from moray.model.dropout import without_dropout
from moray.tasks.classification import planned
from moray.tasks.classification.task import TextBatch
from moray.tasks.reward.task import RewardLoss, make_pair_batch


def empty(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a folder's config, on `meta`. Its output layer takes next to nothing."""
    return without_dropout(planned.empty(folder, dtype))


def loss_module(model: PreTrainedModel) -> RewardLoss:
    """The module that is trained; its settings make no difference."""
    return RewardLoss(model, None)


def batch(rows: int, tokens: int) -> TextBatch:
    """Pairs whose texts fill their rows."""
    fields = [("tokens", "<u4", (2, tokens)), ("length", "<u4", (2,)), ("margin", "<f4")]
    records = np.zeros(rows, np.dtype(fields))
    records["length"] = tokens
    # No padding.
    records["tokens"] = 1
    return make_pair_batch(records)
