"""Rows as tensors for a model, and the loss of their trained tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from moray.model.balance import RouterBalance, real_tokens
from moray.model.forward import compiler_options, decoder_of
from moray.rows.store import Rows
from moray.tasks.language.cross_entropy import (
    SoftmaxLoss,
    linear_cross_entropy,
    linear_scores,
    softmax_loss,
    target_scores,
)
from moray.tasks.language.rows import FIRST, is_trained
from moray.train.task import Batch, LossModule

_POSITIONS_AT_ONCE = 256
# Pieces without tokens cost next to nothing, and each size of `cu_seqlens` is compiled by itself.
_FEWEST_ENDS = 64


@dataclass(frozen=True)
class TokenBatch(Batch):
    """Rows of packed documents.

    Attributes:
        input_ids: shape (rows, block_size).
        position_ids: shape (rows, block_size); restart at each document, which keeps attention
            inside documents.
        target_indices: indices, into the flattened rows, of the tokens that precede a trained
            token, in reading order, shape (trained tokens,).
        targets: the trained tokens, shape (trained tokens,).
        cu_seqlens: where each piece begins in the flattened rows, then where the last one ends,
            int32, shape (a power of two, at least 64,): the end is repeated, so that compiled code
            sees only a few shapes.
    """

    input_ids: Tensor
    position_ids: Tensor
    target_indices: Tensor
    targets: Tensor
    cu_seqlens: Tensor


def make_batch(rows: Rows) -> TokenBatch:
    """Make a batch of rows."""
    # NumPy, not PyTorch, because this runs in parallel with the training steps. PyTorch would
    # give this thread its own pool of threads, and with more threads than cores, OpenMP puts all
    # of them to sleep at each barrier.
    tokens = rows["tokens"].astype(np.int64)
    row, column = np.nonzero(is_trained(rows)[:, 1:])
    # Computed on the CPU: on a GPU, the host would have to wait for the result.
    indices = row * tokens.shape[1] + column
    targets = tokens.ravel()[indices + 1]
    arrays = (tokens, _positions(rows), indices, targets, _cu_seqlens(rows))
    return TokenBatch(*map(torch.from_numpy, arrays))


def _positions(rows: Rows) -> NDArray[np.int64]:
    """Positions from the first token of each piece, shape (rows, block_size)."""
    flags = rows["flags"]
    columns = np.arange(flags.shape[1])
    starts = np.where(flags & FIRST, columns, 0)
    return columns - np.maximum.accumulate(starts, axis=1)


def _cu_seqlens(rows: Rows) -> NDArray[np.int32]:
    first = (rows["flags"] & FIRST).astype(bool)
    # A piece never continues in the next row.
    first[:, :1] = True
    starts = np.flatnonzero(first)
    size = max(_FEWEST_ENDS, 1 << len(starts).bit_length())
    ends = np.full(size, first.size, np.int32)
    ends[: len(starts)] = starts
    return ends


class TokenLoss(LossModule):
    """Negative log-likelihood of the trained tokens of a batch, in nats.

    Logits are computed only for trained positions, and never all at once. The exception are
    architectures that change the output embedding's result (a soft cap, a scale): there, the model
    computes all logits.
    """

    def __init__(self, model: PreTrainedModel, plain_head: bool) -> None:
        """Wrap a model; `has_plain_head` says whether its head is plain."""
        super().__init__()
        self.model = model
        self._plain_head = plain_head
        self.balance: RouterBalance | None = None
        self._routed: tuple[Tensor, ...] = ()
        self._counts_only = False
        self.softmax: SoftmaxLoss = softmax_loss

    def balance_routers(self, setting: bool | float) -> None:
        self.balance = RouterBalance(self.model, setting)

    def compile_loss(self) -> None:
        # Otherwise the compiler computes each row in two parts where a GPU has many, with a second
        # pass over the logits: 1.5 ms instead of 0.95 for 8,192 rows of 50,304 on an H100.
        options = compiler_options() | {"split_reductions": False}
        self.softmax = torch.compile(softmax_loss, options=options)

    def external_parameters(self) -> list[nn.Parameter]:
        """The weights of the output embedding."""
        return [self.model.get_output_embeddings().weight]

    def forward(self, batch: TokenBatch) -> Tensor:
        """Sum of the losses of the trained tokens, fp32, shape ().

        In training, with the part of a mixture's load-balancing loss, if there is one.
        """
        if self._counts_only and self.balance:
            states = self._decode(batch)
            self.balance.count(self._routed, _real_tokens(batch))
            return states.new_zeros(())
        loss = self.sum_of_losses(batch)
        if self._is_balanced and self.balance:
            loss = loss + self.balance.part_of(self._routed, _real_tokens(batch))
        return loss

    def sum_of_losses(self, batch: TokenBatch) -> Tensor:
        """Sum of the losses of the trained tokens alone, fp32, shape ()."""
        if (weight := self._linear_head()) is not None:
            hidden, targets = self._hidden(batch), pad(batch.targets)
            return linear_cross_entropy(hidden, weight, targets, len(batch.targets), self.softmax)
        return F.cross_entropy(self.logits(batch).float(), batch.targets, reduction="sum")

    def begin_step(self, batches: Sequence[Batch], weight: float) -> None:
        if not self.balance or not self.training:
            return
        self.balance.begin_step(weight)
        if len(batches) < 2:
            return
        # Dropout is to be that of the passes which follow.
        with torch.no_grad(), torch.random.fork_rng():
            self._counts_only = True
            for batch in batches:
                # As a whole, because a strategy gathers weights by it.
                self(batch.to(self.model.device))
            self._counts_only = False
        self.balance.complete()

    @property
    def _is_balanced(self) -> bool:
        return self.balance is not None and self.training

    def scores(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """The loss of each trained token, nats, fp32, and whether the model finds it likeliest."""
        if (weight := self._linear_head()) is not None:
            hidden, count = self._hidden(batch), len(batch.targets)
            losses, hits = linear_scores(hidden, weight, pad(batch.targets))
            return losses[:count], hits[:count]
        return target_scores(self.logits(batch), batch.targets)

    def _linear_head(self) -> Tensor | None:
        """The output embedding's weight, if logits are nothing but its product; else None."""
        head: Any = self.model.get_output_embeddings()
        if hasattr(head, "modules_to_save"):
            head = head.modules_to_save["default"]
        # A subclass may compute something else.
        if not self._plain_head or getattr(head, "bias", None) is not None:
            return None
        if type(head) is nn.Linear:
            weight: Tensor = head.weight
            return weight
        # PEFT trains the rows of new tokens beside the others.
        rows: Any = getattr(head, "token_adapter", None)
        return None if rows is None else rows.get_merged_weights(rows.active_adapters)

    def logits(self, batch: TokenBatch) -> Tensor:
        """Logits at the trained positions, shape (trained tokens, vocabulary)."""
        if not self._plain_head:
            output = self.model(**self._inputs(batch))
            self._keep_routed(output)
            whole: Tensor = output.logits
            return whole.flatten(0, 1)[batch.target_indices]
        logits: Tensor = self.model.get_output_embeddings()(self._hidden(batch))
        return logits[: len(batch.targets)]

    def _hidden(self, batch: TokenBatch) -> Tensor:
        """The decoder's states at the trained positions and some more, shape (positions, width)."""
        states = self._decode(batch)
        indices = pad(batch.target_indices)
        # On a CPU, ten times as fast as indexing with brackets, forward and backward together.
        return torch.index_select(states.flatten(0, 1), 0, indices)

    def _decode(self, batch: TokenBatch) -> Tensor:
        """The decoder's states at all positions, shape (rows, block_size, width)."""
        output = decoder_of(self.model)(**self._inputs(batch))
        self._keep_routed(output)
        states: Tensor = output.last_hidden_state
        return states

    def _keep_routed(self, output: Any) -> None:
        if self._is_balanced:
            self._routed = tuple(one.flatten(0, -2) for one in output.router_logits)

    def _inputs(self, batch: TokenBatch) -> dict[str, Any]:
        inputs = {
            "input_ids": batch.input_ids,
            "position_ids": batch.position_ids,
            # Transformers ignores restarts in position_ids if it has a cache.
            "use_cache": False,
        }
        if self._is_balanced:
            inputs["output_router_logits"] = True
        return inputs | {"cu_seqlens": batch.cu_seqlens} if self.attention == "varlen" else inputs


def _real_tokens(batch: TokenBatch) -> Tensor:
    return real_tokens(batch.position_ids, batch.target_indices)


def pad(values: Tensor) -> Tensor:
    """Values with zeros up to a multiple.

    On a CPU, each size of a matrix product gets its own compiled code, which is never freed. With
    only a few sizes, memory stays constant and steps are about 7 % faster.
    """
    missing = -len(values) % _POSITIONS_AT_ONCE
    return F.pad(values, (*(0, 0) * (values.dim() - 1), 0, missing))


@torch.no_grad()
def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits are the output embedding of the decoder's states, without further steps.

    Tested with artificial states that are large enough for a cap to show. The states of a new
    model or of a padding token are near zero, where capped or scaled logits look like plain ones.
    """
    decoder = decoder_of(model)
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    states = torch.zeros_like(decoder(input_ids=tokens, use_cache=False).last_hidden_state)
    states += 100 * torch.linspace(-1, 1, states.shape[-1], device=states.device).sin()

    def replace(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        output.last_hidden_state = states
        return output

    hook = decoder.register_forward_hook(replace)
    try:
        whole = model(input_ids=tokens, use_cache=False).logits
    finally:
        hook.remove()
    return torch.allclose(model.get_output_embeddings()(states), whole, rtol=1e-4, atol=1e-3)
