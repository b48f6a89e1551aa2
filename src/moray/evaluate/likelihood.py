"""How likely a model finds held-out documents."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from transformers import PreTrainedModel

from moray.model.loss import TokenLoss, targets
from moray.tokens.batch import IGNORED, make_batch
from moray.tokens.store import Segment, Split


@dataclass(frozen=True)
class DocumentScores:
    """Sums over the trained tokens of each document, all of shape (documents,).

    Attributes:
        nll: negative log-likelihood, nats.
        tokens: number of trained tokens, stop tokens included.
        bytes: UTF-8 bytes of text behind them.
        correct: tokens that the model found likeliest.
    """

    nll: NDArray[np.float64]
    tokens: NDArray[np.int64]
    bytes: NDArray[np.int64]
    correct: NDArray[np.int64]


@torch.no_grad()
def score(model: PreTrainedModel, split: Split, num_rows: int, batch_size: int) -> DocumentScores:
    """Score the documents in the first rows of a split, in the model's own precision.

    Args:
        model: in evaluation mode.
        split: of a token store.
        num_rows: rows that are scored.
        batch_size: rows in a forward pass.
    """
    module = TokenLoss(model)
    documents = _documents(split, num_rows)
    numbers, of_token = np.unique(documents, return_inverse=True)
    nll, tokens = np.zeros(len(numbers)), np.zeros(len(numbers), np.int64)
    correct = np.zeros_like(tokens)
    reached = 0
    for start in range(0, num_rows, batch_size):
        rows = np.arange(start, min(start + batch_size, num_rows))
        batch = make_batch(split, rows).to(model.device)
        logits, wanted = module.logits(batch).float(), targets(batch)
        losses = F.cross_entropy(logits, wanted, reduction="none").double().cpu().numpy()
        right = (logits.argmax(-1) == wanted).cpu().numpy()
        here = of_token[reached : reached + len(losses)]
        reached += len(losses)
        np.add.at(nll, here, losses)
        np.add.at(tokens, here, 1)
        np.add.at(correct, here, right)
    return DocumentScores(nll, tokens, _bytes(split, num_rows, numbers), correct)


def _documents(split: Split, num_rows: int) -> NDArray[np.int64]:
    """The document of each trained token in reading order, shape (trained tokens,)."""
    found = []
    for start in range(num_rows):
        owner = np.zeros(split.block_size, np.int64)
        for segment in split.segments_of(start):
            first = segment[Segment.START]
            owner[first : first + segment[Segment.LENGTH]] = segment[Segment.DOCUMENT]
        # A place's label is the token behind it, in the same document.
        trained = make_batch(split, np.array([start])).labels[0].numpy() != IGNORED
        found.append(owner[trained])
    return np.concatenate(found)


def _bytes(split: Split, num_rows: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    segments = split.segments[split.segments[:, Segment.START] < num_rows * split.block_size]
    sums = np.zeros(len(numbers), np.int64)
    known = np.isin(segments[:, Segment.DOCUMENT], numbers)
    places = np.searchsorted(numbers, segments[known, Segment.DOCUMENT])
    np.add.at(sums, places, segments[known, Segment.BYTES])
    return sums
