"""A run on labelled texts without weights and rows, for the plan of its memory."""

from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from moray.tasks.classification.classifier import built, config_of, set_kind
from moray.tasks.classification.survey import SINGLE
from moray.tasks.classification.task import LabelLoss, TextBatch, make_batch


def empty(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a folder's config, on `meta`. Its output layer takes next to nothing."""
    config = config_of(folder)
    set_kind(config, of_words=False)
    # Before the base model is made, a language model's, which may have none.
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    with torch.device("meta"):
        return built(config, folder, dtype)


def loss_module(model: PreTrainedModel) -> LabelLoss:
    """The module that is trained; what the problem is makes no difference."""
    return LabelLoss(model, SINGLE, None)


def batch(rows: int, tokens: int) -> TextBatch:
    """Texts that fill their rows."""
    fields = [("tokens", "<u4", (tokens,)), ("length", "<u4"), ("label", "<u4")]
    records = np.zeros(rows, np.dtype(fields))
    records["length"] = tokens
    # No padding.
    records["tokens"] = 1
    return make_batch(records)
