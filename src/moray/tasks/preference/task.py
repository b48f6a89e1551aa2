"""Learning from preferences as a task: batches of rows of pairs, and the loss of the pairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from moray.config.schema.losses import Preference
from moray.model.dropout import without_dropout
from moray.model.quantization import Bits, Quantization
from moray.proofs.figures import Figures
from moray.rows.store import RowPositions, Rows
from moray.tasks.language.cross_entropy import linear_log_probabilities
from moray.tasks.language.loss import TokenBatch, TokenLoss, make_batch, pad
from moray.tasks.language.proofs import plain
from moray.tasks.language.rows import FIRST, TRAINED
from moray.tasks.language.task import LanguageTask
from moray.tasks.preference import proofs
from moray.tasks.preference.losses import likelihood_weight, preference_losses
from moray.tasks.preference.rows import as_sequences, num_pairs
from moray.train.task import LossModule
from moray.workers.collectives import from_first_worker


@dataclass(frozen=True)
class PairBatch(TokenBatch):
    """Rows of packed pairs; of the attributes, those that a `TokenBatch` doesn't have.

    Attributes:
        pieces: the piece of each trained token, shape (trained tokens,): 2i for the chosen answer
            of pair i, 2i + 1 for the rejected one.
        reference: log-probabilities of the answers under the reference, nats, fp32, shape
            (pairs, 2): chosen, rejected; zeros without one.
    """

    pieces: Tensor
    reference: Tensor


def make_pair_batch(rows: Rows, packing: bool) -> PairBatch:
    """Make a batch of rows, which can have the field `reference`; see `as_sequences`."""
    batch = make_batch(as_sequences(rows, packing))
    return PairBatch(
        **vars(batch),
        pieces=torch.from_numpy(pieces_of(rows)),
        reference=torch.from_numpy(reference_of(rows)),
    )


def pieces_of(rows: Rows) -> NDArray[np.int64]:
    """The piece of each trained token, shape (trained tokens,)."""
    flags = rows["flags"].ravel()
    # Each piece has a trained token, and padding has none.
    trained = np.cumsum(flags & FIRST != 0)[flags & TRAINED != 0]
    pieces: NDArray[np.int64] = np.unique(trained, return_inverse=True)[1]
    return pieces


def reference_of(rows: Rows) -> NDArray[np.float32]:
    """Log-probabilities of answers under the reference, shape (pairs, 2); zeros without one."""
    numbers = num_pairs(rows)
    assert rows.dtype.names
    if "reference" not in rows.dtype.names:
        return np.zeros((int(numbers.sum()), 2), np.float32)
    stored: NDArray[np.float32] = rows["reference"]
    return stored[np.arange(stored.shape[1]) < numbers[:, None]]


class AnswersLoss(TokenLoss):
    """Base class of losses that depend on the log-probabilities of whole answers.

    Logits are computed only for the answers' tokens, and never all at once; the exception are
    architectures whose logits aren't those of a linear layer without bias, see `TokenLoss`.
    """

    def balance_routers(self, setting: bool | float) -> None:
        LossModule.balance_routers(self, setting)

    def compile_loss(self) -> None:
        """Nothing: the loss itself takes little time."""

    def log_probabilities(self, batch: TokenBatch, pieces: Tensor, count: int) -> Tensor:
        """Log-probability of each piece, nats, fp32, shape (count,).

        Args:
            pieces: the piece of each trained token, shape (trained tokens,).
        """
        tokens = self._log_probabilities(batch)
        return torch.zeros(count, device=tokens.device).index_add(0, pieces, tokens)

    def _log_probabilities(self, batch: TokenBatch) -> Tensor:
        """Log-probability of each trained token, nats, fp32, shape (trained tokens,)."""
        if (weight := self._linear_head()) is not None:
            hidden, targets = self._hidden(batch), pad(batch.targets)
            return linear_log_probabilities(hidden, weight, targets)[: len(batch.targets)]
        logits = self.logits(batch).float()
        return -F.cross_entropy(logits, batch.targets, reduction="none")


class PreferenceLoss(AnswersLoss):
    """Loss of the pairs of a batch, in which only the answers' tokens count."""

    def __init__(self, model: PreTrainedModel, plain_head: bool, settings: Preference) -> None:
        super().__init__(model, plain_head)
        self._settings = settings

    def forward(self, batch: PairBatch) -> Tensor:  # type: ignore[override]
        """Sum of the losses of the pairs, fp32, shape ()."""
        count = batch.reference.numel()
        answers = self.log_probabilities(batch, batch.pieces, count)
        lengths = torch.bincount(batch.pieces, minlength=count)
        pairs = answers.view(-1, 2), batch.reference, lengths.view(-1, 2)
        return preference_losses(*pairs, self._settings).sum()


class AnswersTask(LanguageTask):
    """Base class of tasks whose rows are packed answers, each with another one.

    There is no dropout: the reference has none, so it would differ from the start.
    """

    def load(
        self, start: Path, dtype: torch.dtype, quantization: Quantization | None
    ) -> PreTrainedModel:
        return without_dropout(super().load(start, dtype, quantization))

    def empty(self, start: Path, dtype: torch.dtype) -> PreTrainedModel:
        return without_dropout(super().empty(start, dtype))

    def weight(self, rows: Rows) -> int:
        return int(num_pairs(rows).sum())


class PreferenceTask(AnswersTask):
    """Rows are packed pairs of answers; the loss is that of the pairs."""

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None:
        super().__init__(manifest, settings)
        # Without packing, each half of a row is a sequence of its own.
        self.row_length = manifest["block_size"] // (1 if self._packing else 2)
        self.units_per_row = manifest["block_size"]
        self._settings = Preference(**settings["preference"])

    def loss_module(self, model: PreTrainedModel) -> PreferenceLoss:
        plain_head = from_first_worker(lambda: self._check(model))
        return PreferenceLoss(model, plain_head, self._settings)

    def batch(self, rows: Rows, row_positions: RowPositions | None) -> PairBatch:
        return make_pair_batch(rows, self._packing)

    def plain(
        self,
        folder: Path,
        start: Path,
        rows: Rows,
        bits: Bits | None,
        device: torch.device,
        gradient: bool,
    ) -> Figures:
        settings = self._settings
        if folder == start and settings.has_reference and not likelihood_weight(settings):
            # A model that equals its reference, whatever the pairs.
            return Figures(proofs.loss_at_start(settings))
        model = plain.load(folder, bits, device)
        reference = plain.load(start, bits, device) if settings.has_reference else None
        return proofs.figures_of(model, reference, rows, settings)


task = PreferenceTask
