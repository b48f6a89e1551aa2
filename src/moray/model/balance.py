"""The load-balancing loss of a mixture of experts, over all tokens of a step.

Source: Fedus et al., "Switch Transformers", 2022, equations 4 to 6, as in transformers: over all
layers, the number of experts times the sum over experts of the share of choices that fell on one
and the mean of its probability.

The shares are those of the whole step, so the loss doesn't depend on how its rows are divided into
workers and micro-batches: the choices are counted over all of them before any gradient. With one
micro-batch on each worker, its own forward pass does that; with several, another one before it.
"""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moray.errors import UserError
from moray.workers.collectives import sum_over_workers


class RouterBalance:
    """The load-balancing loss of a model's steps."""

    def __init__(self, model: PreTrainedModel, setting: bool | float) -> None:
        """Take the loss of a model's architecture.

        Args:
            setting: its coefficient; true for that of the model's config.

        Raises:
            UserError: if the architecture has none.
        """
        if fault := fault_of_balance(model):
            raise fault
        text = model.config.get_text_config()
        self._coefficient = text.router_aux_loss_coef if setting is True else float(setting)
        self._chosen: int = text.num_experts_per_tok
        self._weight = 1.0
        self._counted: Tensor | None = None
        self._is_complete = False

    def begin_step(self, weight: float) -> None:
        """Begin with a step whose loss is divided by a weight."""
        self._weight, self._counted, self._is_complete = weight, None, False

    @torch.no_grad()
    def count(self, logits: Sequence[Tensor], is_real: Tensor) -> None:
        """Count the choices of a micro-batch, for its step.

        Args:
            logits: of each layer's router, shape (tokens, experts).
            is_real: whether each token counts, shape (tokens,).
        """
        choices = torch.stack([_choices(one, self._chosen, is_real) for one in logits]).sum(dim=0)
        # The last one is their number.
        counted = torch.cat([choices, len(logits) * is_real.sum().double()[None]])
        self._counted = counted if self._counted is None else self._counted + counted

    def complete(self) -> None:
        """Add the counts of all workers, which call this together."""
        assert self._counted is not None
        sum_over_workers(self._counted)
        self._is_complete = True

    def part_of(self, logits: Sequence[Tensor], is_real: Tensor) -> Tensor:
        """A micro-batch's part of the step's loss, times the step's weight, fp32, shape ().

        If the step's choices aren't counted yet, they are counted here: then, the micro-batch is
        the only one of its worker.
        """
        if not self._is_complete:
            self.count(logits, is_real)
            self.complete()
        assert self._counted is not None
        choices, total = self._counted[:-1], self._counted[-1]
        mean = torch.stack([_probabilities(one, is_real) for one in logits]).sum(dim=0) / total
        balance = len(choices) * (choices / total * mean).sum()
        return (self._coefficient * self._weight * balance).float()


def fault_of_balance(model: PreTrainedModel) -> UserError | None:
    """Why a model has no load-balancing loss; None if it has one."""
    has_loss = hasattr(sys.modules[type(model).__module__], "load_balancing_loss_func")
    text = model.config.get_text_config()
    if has_loss and hasattr(text, "router_aux_loss_coef"):
        return None
    return UserError(
        "train.router_aux_loss",
        f"transformers has no load-balancing loss for {model.config.model_type} models",
        "set it to false",
    )


def real_tokens(positions: Tensor, before_targets: Tensor) -> Tensor:
    """Whether tokens of packed rows are of a document, up to its last trained one.

    Padding isn't, and what a document alone would be computed for is.

    Args:
        positions: of tokens in their documents, shape (rows, block_size).
        before_targets: indices, into the flattened rows, of tokens that precede a trained one.

    Returns:
        Shape (rows times block_size,).
    """
    flat = positions.flatten()
    document = (flat == 0).cumsum(0) - 1
    last = torch.full_like(flat, -1)
    last.scatter_reduce_(0, document[before_targets], before_targets + 1, "amax")
    return torch.arange(len(flat), device=flat.device) <= last[document]


def _choices(logits: Tensor, chosen: int, is_real: Tensor) -> Tensor:
    """How many tokens chose each expert, fp64, shape (experts,)."""
    probabilities = torch.softmax(logits.float(), dim=-1)
    experts = probabilities.topk(chosen, dim=-1).indices
    counts = torch.zeros(logits.shape[-1], dtype=torch.float64, device=logits.device)
    weights = is_real.double().repeat_interleave(chosen)
    return counts.scatter_add_(0, experts.flatten(), weights)


def _probabilities(logits: Tensor, is_real: Tensor) -> Tensor:
    """The sum of each expert's probabilities, fp64, shape (experts,)."""
    probabilities = torch.softmax(logits.float(), dim=-1)
    return (probabilities.double() * is_real[:, None]).sum(dim=0)
