"""Texts of a batch, each in a padded row of its own."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from moray.rows.store import Rows
from moray.train.task import Batch


@dataclass(frozen=True)
class PaddedTexts(Batch):
    """Texts without what is said of them.

    Attributes:
        tokens, mask: shape (texts, tokens).
        types: which of two texts a token is of, likewise; empty if the model doesn't ask for it.
    """

    tokens: Tensor
    mask: Tensor
    types: Tensor

    def logits(self, model: PreTrainedModel) -> Tensor:
        """The logits of a model, fp32, shape (texts, classes), or (texts, tokens, tags)."""
        types = {"token_type_ids": self.types} if self.types.numel() else {}
        logits: Tensor = model(input_ids=self.tokens, attention_mask=self.mask, **types).logits
        return logits.float()


def padded(rows: Rows) -> PaddedTexts:
    """The texts of rows, as wide as the longest of them."""
    lengths = rows["length"].astype(np.int64)
    width = max(1, int(lengths.max(initial=0)))
    # Attention of a row of padding needs something to attend to.
    mask = np.arange(width) < np.maximum(lengths, 1)[:, None]
    has_types = "types" in (rows.dtype.names or ())
    types = rows["types"][:, :width] if has_types else np.zeros((len(rows), 0))
    arrays = (rows["tokens"][:, :width], mask, types)
    return PaddedTexts(*(torch.from_numpy(each.astype(np.int64)) for each in arrays))
