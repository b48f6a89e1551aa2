"""Rows of pairs as tensors for a model, and the loss of pairs of answers."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from moray.config.schema.train import Preference
from moray.model.loss import linear_log_probabilities
from moray.rows.store import Rows
from moray.tasks.language.loss import TokenBatch, TokenLoss, make_batch, padded
from moray.tasks.language.rows import FIRST, TRAINED
from moray.tasks.preference.rows import as_sequences, num_pairs


@dataclass(frozen=True)
class PairBatch(TokenBatch):
    """Rows of packed pairs; of the attributes, those that a `TokenBatch` doesn't have.

    Attributes:
        pieces: the piece of each trained token, shape (trained tokens,): 2i for the chosen answer
            of pair i, 2i + 1 for the rejected one.
        reference: log-probabilities of the answers under the reference, nats, fp32, shape
            (pairs, 2): chosen, rejected.
    """

    pieces: Tensor
    reference: Tensor


def make_pair_batch(rows: Rows, packing: bool) -> PairBatch:
    """Make a batch of rows with the field `reference`; see `as_sequences` for `packing`."""
    batch = make_batch(as_sequences(rows, packing))
    flags = rows["flags"].ravel()
    # Each piece has a trained token, and padding has none.
    trained = np.cumsum(flags & FIRST != 0)[flags & TRAINED != 0]
    _, pieces = np.unique(trained, return_inverse=True)
    reference = rows["reference"]
    filled = np.arange(reference.shape[1]) < num_pairs(rows)[:, None]
    return PairBatch(
        **vars(batch),
        pieces=torch.from_numpy(pieces),
        reference=torch.from_numpy(reference[filled]),
    )


class PreferenceLoss(TokenLoss):
    """Loss of the pairs of a batch, in which only the answers' tokens count.

    Logits are computed only for the answers' tokens, and never all at once; the exception are
    architectures whose logits aren't those of a linear layer without bias, see `TokenLoss`.
    """

    def __init__(self, model: PreTrainedModel, plain_head: bool, settings: Preference) -> None:
        super().__init__(model, plain_head)
        self._settings = settings

    def compile_loss(self) -> None:
        """Nothing: the loss itself takes little time."""

    def forward(self, batch: PairBatch) -> Tensor:  # type: ignore[override]
        """Sum of the losses of the pairs, fp32, shape ()."""
        count = batch.reference.numel()
        tokens = self._log_probabilities(batch)
        answers = torch.zeros(count, device=tokens.device).index_add(0, batch.pieces, tokens)
        lengths = torch.bincount(batch.pieces, minlength=count)
        ratios = answers.view(-1, 2) - batch.reference
        return preference_losses(ratios, lengths.view(-1, 2), self._settings).sum()

    def _log_probabilities(self, batch: PairBatch) -> Tensor:
        """Log-probability of each trained token, nats, fp32, shape (trained tokens,)."""
        if (weight := self._linear_head()) is not None:
            hidden, targets = self._hidden(batch), padded(batch.targets)
            return linear_log_probabilities(hidden, weight, targets)[: len(batch.targets)]
        logits = self.logits(batch).float()
        return -F.cross_entropy(logits, batch.targets, reduction="none")


def preference_losses(ratios: Tensor, lengths: Tensor, settings: Preference) -> Tensor:
    """Loss of each pair.

    Sources: Rafailov et al., "Direct Preference Optimization", 2023 (`dpo`); Mitchell, "A note on
    DPO with noisy preferences and relationship to IPO", 2023 (`label_smoothing`); Azar et al., "A
    general theoretical paradigm to understand learning from human preferences", 2023, equation 17
    (`ipo`), with log-probabilities averaged over an answer's tokens as in TRL.

    Args:
        ratios: log-probability of each answer under the model minus that under the reference,
            nats, shape (pairs, 2): chosen, rejected.
        lengths: number of tokens of each answer, shape (pairs, 2).

    Returns:
        Shape (pairs,).
    """
    beta, smoothing = settings.beta, settings.label_smoothing
    if settings.loss == "ipo":
        chosen, rejected = (ratios / lengths).unbind(1)
        return (chosen - rejected - 1 / (2 * beta)) ** 2
    chosen, rejected = ratios.unbind(1)
    margins = beta * (chosen - rejected)
    return -F.logsigmoid(margins) * (1 - smoothing) - F.logsigmoid(-margins) * smoothing
