"""A run on text without weights and rows, for the plan of its memory."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from moray.model.load import empty_model as empty
from moray.tasks.language.loss import TokenBatch, TokenLoss, make_batch
from moray.tasks.language.rows import FIRST, TRAINED, row_type

__all__ = ["batch", "empty", "loss_module", "row_length"]


def row_length(tokens: int, packing: bool) -> int:
    """Tokens of a row to the model."""
    return tokens


def loss_module(model: PreTrainedModel, plain_head: bool, settings: Mapping[str, Any]) -> TokenLoss:
    """The module that is trained."""
    return TokenLoss(model, plain_head)


def batch(
    rows: int, tokens: int, packing: bool, few: bool, settings: Mapping[str, Any]
) -> TokenBatch:
    """Rows of a document each, of which all tokens are trained, or only the last."""
    records = np.zeros(rows, row_type(tokens, np.dtype("<u4")))
    records["flags"][:, -1 if few else slice(None)] = TRAINED
    records["flags"][:, 0] |= FIRST
    return make_batch(records)
