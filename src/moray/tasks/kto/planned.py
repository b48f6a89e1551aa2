"""A run on answers without weights and rows, for the plan of its memory."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from moray.config.schema.losses import Kto
from moray.tasks.kto.task import AnswerBatch, KtoLoss, make_answer_batch
from moray.tasks.preference.planned import empty, pairs

__all__ = ["batch", "empty", "loss_module", "row_length"]


def row_length(tokens: int, packing: bool) -> int:
    """Tokens of a row to the model."""
    return tokens // 2


def loss_module(model: PreTrainedModel, plain_head: bool, settings: Mapping[str, Any]) -> KtoLoss:
    """The module that is trained."""
    return KtoLoss(model, plain_head, Kto(**settings["kto"]))


def batch(
    rows: int, tokens: int, packing: bool, few: bool, settings: Mapping[str, Any]
) -> AnswerBatch:
    """Rows of an answer each, and another document's; of both, all tokens are trained, or one."""
    return make_answer_batch(pairs(rows, tokens, few))
