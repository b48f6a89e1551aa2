"""Learning from answers that are good or bad as a task: batches of rows, and their loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from moray.config.schema.losses import Kto
from moray.model.quantization import Bits
from moray.proofs.figures import Figures
from moray.rows.store import RowPositions, Rows
from moray.tasks.kto import proofs
from moray.tasks.kto.losses import kl_of, kto_losses
from moray.tasks.kto.rows import DESIRABLE
from moray.tasks.language.loss import TokenBatch, make_batch
from moray.tasks.language.proofs import plain
from moray.tasks.language.rows import TRAINED
from moray.tasks.preference.rows import as_sequences
from moray.tasks.preference.task import AnswersLoss, AnswersTask, pieces_of, reference_of
from moray.train.task import Batch
from moray.workers.collectives import from_first_worker, sum_over_workers


@dataclass(frozen=True)
class Pieces(TokenBatch):
    """Half rows of packed pieces; of the attributes, those that a `TokenBatch` doesn't have.

    Attributes:
        pieces: the piece of each trained token, shape (trained tokens,).
        reference: log-probability of each piece under the reference, nats, fp32, shape (pieces,).
    """

    pieces: Tensor
    reference: Tensor


@dataclass(frozen=True)
class AnswerBatch(Batch):
    """Rows of answers.

    Attributes:
        own: prompts with their answers.
        other: the same prompts with the answers of other documents.
        desirable: whether each answer is good, shape (answers,).
    """

    own: Pieces
    other: Pieces
    desirable: Tensor


def make_answer_batch(rows: Rows) -> AnswerBatch:
    """Make a batch of rows, which can have the field `reference`."""
    sequences, reference = as_sequences(rows, packing=False), reference_of(rows)
    own, other = (
        Pieces(
            **vars(make_batch(half)),
            pieces=torch.from_numpy(pieces_of(half)),
            reference=torch.from_numpy(reference[:, side].copy()),
        )
        for side, half in enumerate((sequences[::2], sequences[1::2]))
    )
    flags = sequences["flags"][::2].ravel()
    desirable = np.zeros(len(reference), np.bool_)
    desirable[own.pieces.numpy()] = flags[flags & TRAINED != 0] & DESIRABLE != 0
    return AnswerBatch(own, other, torch.from_numpy(desirable))


class KtoLoss(AnswersLoss):
    """Loss of the answers of a batch, with the KL divergence of all rows of a step.

    It is estimated before any loss, so how rows are divided into workers and micro-batches makes no
    difference.

    Attributes:
        kl: the estimate, nats, shape ().
    """

    kl: Tensor

    def __init__(self, model: PreTrainedModel, plain_head: bool, settings: Kto) -> None:
        super().__init__(model, plain_head)
        self._settings = settings
        self.kl = torch.zeros(())
        self._estimates = False

    def begin_step(self, batches: Sequence[Batch], weight: float) -> None:
        device = self.model.device
        total = torch.zeros((), dtype=torch.float64, device=device)
        # Dropout is to be that of the passes which follow.
        with torch.no_grad(), torch.random.fork_rng():
            self._estimates = True
            for batch in batches:
                # As a whole, because a strategy gathers weights by it.
                total += self(batch.to(device))
            self._estimates = False
        self.kl = kl_of(sum_over_workers(total), weight).float()

    def forward(self, batch: AnswerBatch) -> Tensor:  # type: ignore[override]
        """Sum of the losses of the answers, fp32, shape ().

        While the KL divergence is estimated, that of the ratios of other documents' answers, fp64.
        """
        if self._estimates:
            return self.ratios(batch.other).double().sum()
        ratios = self.ratios(batch.own)
        return kto_losses(ratios, batch.desirable, self.kl, self._settings).sum()

    def ratios(self, pieces: Pieces) -> Tensor:
        """Log-probability of each piece minus that under the reference, shape (pieces,)."""
        now = self.log_probabilities(pieces, pieces.pieces, len(pieces.reference))
        return now - pieces.reference


class KtoTask(AnswersTask):
    """Rows are packed answers; the loss is that of the answers."""

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None:
        super().__init__(manifest, settings)
        # Each half of a row is a sequence of its own.
        self.row_length = manifest["block_size"] // 2
        self._settings = Kto(**settings["kto"])

    def loss_module(self, model: PreTrainedModel) -> KtoLoss:
        plain_head = from_first_worker(lambda: self._check(model))
        return KtoLoss(model, plain_head, self._settings)

    def flops_per_row(self, model: PreTrainedModel) -> float:
        # One half has no backward pass, which is two thirds.
        return super().flops_per_row(model) * 2 / 3

    def batch(  # type: ignore[override]
        self, rows: Rows, row_positions: RowPositions | None
    ) -> AnswerBatch:
        return make_answer_batch(rows)

    def plain(
        self,
        folder: Path,
        start: Path,
        rows: Rows,
        bits: Bits | None,
        device: torch.device,
        gradient: bool,
    ) -> Figures:
        if folder == start:
            # A model that equals its reference, whatever the answers.
            return Figures(proofs.loss_at_start(proofs.labels_of(rows), self._settings))
        model, reference = (plain.load(path, bits, device) for path in (folder, start))
        return proofs.figures_of(model, reference, rows, self._settings)


task = KtoTask
