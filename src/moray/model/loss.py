"""The loss of a batch, as a module, so that a strategy can wrap it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from moray.tokens.batch import IGNORED, Batch

_PLACES_AT_ONCE = 256


class TokenLoss(nn.Module):
    """Negative log-likelihood of each trained token of a batch, in nats.

    Logits are made for trained places alone, unless the architecture changes what its output
    embedding gives (a soft cap, a scale): then the model makes them all.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self._plain_head = _has_plain_head(model)

    def forward(self, batch: Batch) -> Tensor:
        """Losses of the trained tokens in reading order, fp32, shape (trained tokens,)."""
        return F.cross_entropy(self.logits(batch), targets(batch), reduction="none").float()

    def logits(self, batch: Batch) -> Tensor:
        """Logits at the trained places, shape (trained tokens, vocabulary)."""
        places = torch.nonzero(batch.labels.flatten() != IGNORED).squeeze(1)
        inputs = {
            "input_ids": batch.input_ids,
            "position_ids": batch.position_ids,
            # With a cache, transformers ignores that position_ids restart at each document.
            "use_cache": False,
        }
        if not self._plain_head:
            whole: Tensor = self.model(**inputs).logits
            return whole.flatten(0, 1)[places]
        hidden = self.model.get_decoder()(**inputs).last_hidden_state
        # Each size of a matrix product has compiled code of its own on a CPU, kept for good:
        # of a few sizes, memory stays flat and steps are some 7 % faster.
        padded = F.pad(places, (0, -len(places) % _PLACES_AT_ONCE))
        logits: Tensor = self.model.get_output_embeddings()(hidden.flatten(0, 1)[padded])
        return logits[: len(places)]


def targets(batch: Batch) -> Tensor:
    """The trained tokens in reading order, shape (trained tokens,)."""
    return batch.labels[batch.labels != IGNORED]


@torch.no_grad()
def _has_plain_head(model: PreTrainedModel) -> bool:
    """Whether logits are what the output embedding makes of the decoder's states, and no more.

    Tried on states of the probe's own, so large that a cap shows: those of a fresh model, or of
    a padding token, are near zero, where a capped or scaled logit looks like a plain one.
    """
    decoder = model.get_decoder()
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
