"""A run on text with a teacher without weights and rows, for the plan of its memory."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from moray.config.schema.losses import Distillation
from moray.tasks.distillation.loss import DistillationLoss, TaughtBatch
from moray.tasks.language import planned
from moray.tasks.language.planned import empty, row_length

__all__ = ["batch", "empty", "loss_module", "row_length"]


def loss_module(
    model: PreTrainedModel, plain_head: bool, settings: Mapping[str, Any]
) -> DistillationLoss:
    """The module that is trained, without its teacher."""
    return DistillationLoss(model, plain_head, Distillation(**settings["distillation"]))


def batch(
    rows: int, tokens: int, packing: bool, few: bool, settings: Mapping[str, Any]
) -> TaughtBatch:
    """Rows of a document each, of which all tokens are trained, or only the last."""
    plain = planned.batch(rows, tokens, packing, few, settings)
    shape = len(plain.targets), settings["distillation"]["top_k"]
    # One value stands for all.
    return TaughtBatch(
        **vars(plain),
        teacher_tokens=torch.zeros((), dtype=torch.int64).expand(shape),
        teacher_logs=torch.zeros(()).expand(shape),
    )
