"""A run on pairs of answers without weights and rows, for the plan of its memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from moray.config.schema.losses import Preference
from moray.model.dropout import without_dropout
from moray.model.load import empty_model
from moray.rows.store import Rows
from moray.tasks.language.rows import FIRST, TRAINED, row_type
from moray.tasks.preference.rows import REJECTED
from moray.tasks.preference.task import PairBatch, PreferenceLoss, make_pair_batch


def row_length(tokens: int, packing: bool) -> int:
    """Tokens of a row to the model."""
    return tokens if packing else tokens // 2


def empty(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a folder's config, on `meta`; training loads no reference."""
    return without_dropout(empty_model(folder, dtype))


def loss_module(
    model: PreTrainedModel, plain_head: bool, settings: Mapping[str, Any]
) -> PreferenceLoss:
    """The module that is trained."""
    return PreferenceLoss(model, plain_head, Preference(**settings["preference"]))


def batch(
    rows: int, tokens: int, packing: bool, few: bool, settings: Mapping[str, Any]
) -> PairBatch:
    """Rows of a pair each; of both answers, all tokens are trained, or only the last."""
    return make_pair_batch(pairs(rows, tokens, few), packing)


def pairs(rows: int, tokens: int, few: bool) -> Rows:
    """The rows of such a batch: the first halves have an answer, and the second halves too."""
    records = np.zeros(rows, row_type(tokens, np.dtype("<u4")))
    flags = records["flags"].reshape(rows, 2, tokens // 2)
    flags[:, :, -1 if few else slice(1, None)] = TRAINED
    flags[:, :, 0] |= FIRST
    flags[:, 1] |= REJECTED
    return records
