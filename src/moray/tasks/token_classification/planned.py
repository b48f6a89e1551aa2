"""A run on words with tags without weights and rows, for the plan of its memory."""

from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from moray.tasks.classification.classifier import built, config_of, set_kind
from moray.tasks.token_classification.task import TaggedBatch, TagLoss, make_batch


def empty(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a folder's config, on `meta`. Its output layer takes next to nothing."""
    config = config_of(folder)
    set_kind(config, of_words=True)
    with torch.device("meta"):
        return built(config, folder, dtype)


def loss_module(model: PreTrainedModel) -> TagLoss:
    """The module that is trained."""
    return TagLoss(model)


def batch(rows: int, tokens: int) -> TaggedBatch:
    """Texts that fill their rows, of words of one token each."""
    fields = [("tokens", "<u4", (tokens,)), ("length", "<u4"), ("labels", "<u2", (tokens,))]
    records = np.zeros(rows, np.dtype(fields))
    records["length"] = tokens
    # No padding.
    records["tokens"] = records["labels"] = 1
    return make_batch(records)
