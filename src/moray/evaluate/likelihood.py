"""How likely a model finds held-out documents."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from transformers import PreTrainedModel

from moray.evaluate.selection import Selection
from moray.model.loss import TokenLoss, has_plain_head
from moray.tokens.batch import Batch, make_batch
from moray.tokens.rows import Segment
from moray.tokens.store import StoredSplit


@dataclass(frozen=True)
class Scores:
    """Sums over the trained tokens of each piece of a document, all of shape (pieces,).

    Attributes:
        document: number of the document that a piece is of.
        nll: negative log-likelihood, nats.
        tokens: number of trained tokens, stop tokens included.
        bytes: UTF-8 bytes of text behind them.
        correct: tokens that the model found likeliest.
    """

    document: NDArray[np.int64]
    nll: NDArray[np.float64]
    tokens: NDArray[np.int64]
    bytes: NDArray[np.int64]
    correct: NDArray[np.int64]

    def by_document(self) -> Self:
        """The sums over all pieces of each document, in the order of their numbers."""
        documents, of_piece = np.unique(self.document, return_inverse=True)
        return type(self)(
            documents,
            np.bincount(of_piece, self.nll).astype(np.float64),
            np.bincount(of_piece, self.tokens).astype(np.int64),
            np.bincount(of_piece, self.bytes).astype(np.int64),
            np.bincount(of_piece, self.correct).astype(np.int64),
        )


@torch.no_grad()
def score(
    model: PreTrainedModel, split: StoredSplit, selection: Selection, batch_size: int
) -> Scores:
    """Score the selected pieces of a split, in the model's own precision.

    Args:
        model: in evaluation mode.
        split: of a token store.
        selection: documents of the split.
        batch_size: rows in a forward pass.
    """
    module = TokenLoss(model, has_plain_head(model))
    pieces = selection.segments
    nll, tokens = np.zeros(len(pieces)), np.zeros(len(pieces), np.int64)
    correct = np.zeros_like(tokens)
    for start in range(0, len(selection.rows), batch_size):
        rows = selection.rows[start : start + batch_size]
        batch = make_batch(selection.read(split, rows))
        piece = _piece_of_token(selection, rows, batch)
        batch = batch.to(model.device)
        logits, wanted = module.logits(batch).float(), batch.targets
        losses = F.cross_entropy(logits, wanted, reduction="none")
        np.add.at(nll, piece, losses.double().cpu().numpy())
        np.add.at(tokens, piece, 1)
        np.add.at(correct, piece, (logits.argmax(-1) == wanted).cpu().numpy())
    document, size = pieces[:, Segment.DOCUMENT], pieces[:, Segment.BYTES]
    return Scores(np.array(document), nll, tokens, np.array(size), correct)


def _piece_of_token(
    selection: Selection, rows: NDArray[np.int64], batch: Batch
) -> NDArray[np.int64]:
    """The piece of each trained token of a batch in reading order, shape (trained tokens,)."""
    block_size = batch.input_ids.shape[1]
    row, column = np.divmod(batch.target_indices.numpy(), block_size)
    starts = selection.segments[:, Segment.START]
    return np.searchsorted(starts, rows[row] * block_size + column, side="right") - 1
