"""Reward models as a task: batches of pairs, and the loss of how their rewards differ.

The loss of a pair is that of Bradley and Terry, "Rank Analysis of Incomplete Block Designs", 1952,
with the margin of Touvron et al., "Llama 2", 2023, equation 2; and the centring of Eisenstein et
al., "Helping or Herding?", 2023, equation 2. TRL's reward trainer has the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from moray.config.schema.losses import Reward
from moray.model.dropout import without_dropout
from moray.model.quantization import Bits, Quantization
from moray.proofs.figures import Figures
from moray.rows.store import RowPositions, Rows
from moray.tasks.classification.proofs import load as load_plain
from moray.tasks.classification.task import ClassificationTask, TextBatch, make_batch
from moray.tasks.reward import proofs
from moray.tasks.reward.rows import as_texts
from moray.train.task import LossModule
from moray.workers.collectives import from_first_worker


def rewards_of(model: PreTrainedModel, batch: TextBatch) -> Tensor:
    """The rewards of a batch of pairs, fp32, shape (pairs, 2): chosen, rejected."""
    return batch.logits(model)[:, 0].view(-1, 2)


def make_pair_batch(rows: Rows) -> TextBatch:
    """Make a batch of both texts of each pair, in turn, whose labels are the margins."""
    return make_batch(as_texts(rows))


def pair_losses(rewards: Tensor, margins: Tensor, coefficient: float | None) -> Tensor:
    """The loss of each pair, shape (pairs,).

    Args:
        rewards: chosen and rejected, shape (pairs, 2).
        coefficient: of the term that centres rewards.
    """
    chosen, rejected = rewards.unbind(1)
    losses = -F.logsigmoid(chosen - rejected - margins)
    if coefficient:
        losses = losses + coefficient * (chosen + rejected) ** 2
    return losses


class RewardLoss(LossModule):
    """The loss of the pairs of a batch; see `pair_losses`."""

    def __init__(self, model: PreTrainedModel, coefficient: float | None) -> None:
        super().__init__()
        # Of a decoder, which would keep keys and values that nothing asks for.
        model.config.use_cache = False
        self.model, self._coefficient = model, coefficient

    def forward(self, batch: TextBatch) -> Tensor:
        """Sum of the losses of the pairs, fp32, shape ()."""
        rewards, margins = rewards_of(self.model, batch), batch.labels[::2]
        losses = pair_losses(rewards, margins, self._coefficient)
        return (losses * batch.counted[::2]).sum()


class RewardTask(ClassificationTask):
    """Rows are pairs of texts, of which the first one deserves more; there is no dropout."""

    unit = "pairs"

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None:
        super().__init__(manifest, {})
        self._coefficient = Reward(**settings["reward"]).center_rewards_coefficient

    def load(
        self, start: Path, dtype: torch.dtype, quantization: Quantization | None
    ) -> PreTrainedModel:
        return without_dropout(super().load(start, dtype, quantization))

    def empty(self, start: Path, dtype: torch.dtype) -> PreTrainedModel:
        return without_dropout(super().empty(start, dtype))

    def loss_module(self, model: PreTrainedModel) -> RewardLoss:  # type: ignore[override]
        from_first_worker(lambda: self._check_labels(model.config))
        return RewardLoss(model, self._coefficient)

    def flops_per_row(self, model: PreTrainedModel) -> float:
        return 2 * super().flops_per_row(model)

    def batch(self, rows: Rows, row_positions: RowPositions | None) -> TextBatch:
        return make_pair_batch(rows)

    def weight(self, rows: Rows) -> int:
        return int((rows["length"][:, 0] > 0).sum())

    def plain(
        self,
        folder: Path,
        start: Path,
        rows: Rows,
        bits: Bits | None,
        device: torch.device,
        gradient: bool,
    ) -> Figures:
        return proofs.figures_of(load_plain(folder).to(device), rows, self._coefficient, gradient)


task = RewardTask
