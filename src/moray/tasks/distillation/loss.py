"""The loss of trained tokens by their documents and by a teacher."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from moray.config.schema.losses import Distillation
from moray.rows.store import Rows
from moray.tasks.distillation.rows import has_entry
from moray.tasks.language.cross_entropy import chunks_of
from moray.tasks.language.loss import TokenBatch, TokenLoss, make_batch, pad


@dataclass(frozen=True)
class TaughtBatch(TokenBatch):
    """Rows of packed documents with a teacher; of the attributes, those a `TokenBatch` hasn't.

    Attributes:
        teacher_tokens: the tokens that the teacher finds likeliest in the place of each trained
            one, shape (trained tokens, k).
        teacher_logs: the logarithms of their probabilities, fp32, likewise.
    """

    teacher_tokens: Tensor
    teacher_logs: Tensor


def make_taught_batch(rows: Rows) -> TaughtBatch:
    """Make a batch of rows; see `rows.with_teacher`."""
    entries = has_entry(rows, rows.dtype["teacher_logs"].shape[0])
    return TaughtBatch(
        **vars(make_batch(rows)),
        teacher_tokens=torch.from_numpy(rows["teacher_tokens"][entries].astype("i8")),
        teacher_logs=torch.from_numpy(rows["teacher_logs"][entries].astype("f4")),
    )


class DistillationLoss(TokenLoss):
    """Cross-entropy of the trained tokens and divergence from a teacher: `distillation_losses`.

    Logits are computed chunk by chunk, and again in the backward pass; but for architectures whose
    logits aren't those of a linear layer, see `TokenLoss`.
    """

    def __init__(self, model: PreTrainedModel, plain_head: bool, settings: Distillation) -> None:
        super().__init__(model, plain_head)
        self._settings = settings

    def compile_loss(self) -> None:
        """Nothing: this loss isn't compiled."""

    def sum_of_losses(self, batch: TaughtBatch) -> Tensor:  # type: ignore[override]
        of_teacher = batch.targets, batch.teacher_tokens, batch.teacher_logs
        if (weight := self._linear_head()) is None:
            logits = self.logits(batch)
            return distillation_losses(logits, *of_teacher, self._settings).sum()
        return torch.stack([*self._sums(self._hidden(batch), weight, of_teacher)]).sum()

    def _sums(
        self, hidden: Tensor, weight: Tensor, of_teacher: tuple[Tensor, ...]
    ) -> Iterator[Tensor]:
        count = len(of_teacher[0])
        again = partial(checkpoint, self._sum, use_reentrant=False)
        targets, tokens, logs = (pad(one) for one in of_teacher)
        for rows in chunks_of(max(1, len(hidden)), weight):
            counted = max(0, min(count, rows.stop) - rows.start)
            yield again(hidden[rows], weight, targets[rows], tokens[rows], logs[rows], counted)

    def _sum(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        tokens: Tensor,
        logs: Tensor,
        counted: int,
    ) -> Tensor:
        logits = F.linear(hidden, weight)
        losses = distillation_losses(logits, targets, tokens, logs, self._settings)
        return losses[:counted].sum()


def distillation_losses(
    logits: Tensor,
    targets: Tensor,
    teacher_tokens: Tensor,
    teacher_logs: Tensor,
    settings: Distillation,
) -> Tensor:
    """(1 - alpha) cross-entropy + alpha temperature² divergence, of each trained token.

    The Kullback-Leibler divergence of the model from its teacher is that of two distributions over
    the teacher's likeliest tokens and one class of all others. Source: Hinton et al., "Distilling
    the Knowledge in a Neural Network", 2015.

    Args:
        logits: those of the model, shape (trained tokens, vocabulary).
        targets: the trained tokens, shape (trained tokens,).
        teacher_tokens: the teacher's likeliest, shape (trained tokens, k).
        teacher_logs: the logarithms of their probabilities at the temperature, likewise.

    Returns:
        Nats, fp32, shape (trained tokens,).
    """
    alpha, temperature = settings.alpha, settings.temperature
    logits = logits.float()
    logs = torch.log_softmax(logits, -1)
    losses = -logs.gather(1, targets.unsqueeze(1)).squeeze(1)
    if temperature != 1:
        logs = torch.log_softmax(logits / temperature, -1)
    divergence = _divergence(logs, teacher_tokens, teacher_logs)
    return (1 - alpha) * losses + alpha * temperature**2 * divergence


def _divergence(logs: Tensor, tokens: Tensor, teacher_logs: Tensor) -> Tensor:
    chosen = logs.gather(1, tokens)
    # Rounded, they can add up to more than 1.
    mass = teacher_logs.logsumexp(1, keepdim=True)
    if tokens.shape[1] == logs.shape[1]:
        teacher_logs = teacher_logs - mass
        return (teacher_logs.exp() * (teacher_logs - chosen)).sum(1)
    teacher_logs = teacher_logs - mass.clamp(min=0)
    divergence = (teacher_logs.exp() * (teacher_logs - chosen)).sum(1)
    rest = -torch.expm1(mass.squeeze(1).clamp(max=0))
    of_model = logs.scatter(1, tokens, -torch.inf).logsumexp(1)
    return divergence + torch.xlogy(rest, rest) - rest * of_model
