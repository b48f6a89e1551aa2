"""The likelihood of held-out documents under a model."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from moray.background import prefetch
from moray.evaluate.batches import Arrays
from moray.model.attention import varlen_if_possible
from moray.rows.store import Rows, sample
from moray.tasks.language.loss import TokenBatch, TokenLoss, has_plain_head, make_batch
from moray.tasks.language.rows import TRAINED, Segment, StoredSplit, row_type
from moray.workers.memory import split_on_out_of_memory

# The piece of each trained token of a batch, and the batch.
_PreparedBatch = tuple[NDArray[np.int64], TokenBatch]
# For each trained token: its piece, its loss in nats, and whether the model found it likeliest.
_TokenScores = tuple[NDArray[np.int64], Tensor, Tensor]

# Each width of a batch gets its own compiled code, so there are only a few.
_COLUMNS_AT_ONCE = 64


@dataclass(frozen=True)
class Selection:
    """Whole documents of a split.

    Attributes:
        rows: numbers of the rows that contain their pieces, shape (rows,). Those that need the most
            columns come first, so that the rows of a batch end alike.
        segments: their pieces, columns as in `Segment`, sorted by offset, shape (pieces, 4).
    """

    rows: NDArray[np.int64]
    segments: NDArray[np.int64]

    def read(self, split: StoredSplit, rows: NDArray[np.int64]) -> Rows:
        """Read some of the rows, with only the selected documents marked as trained."""
        read = np.array(split.rows[rows])
        starts = self.segments[:, Segment.START]
        ends = starts + self.segments[:, Segment.LENGTH]
        offsets = rows[:, None] * split.block_size + np.arange(split.block_size)
        piece = np.searchsorted(starts, offsets, side="right") - 1
        outside = (piece < 0) | (offsets >= ends[piece])
        read["flags"][outside] &= ~np.uint8(TRAINED)
        return read


def select_documents(
    split: StoredSplit, max_documents: int | None, length: int | None = None
) -> Selection:
    """Select a random sample of the documents that have trained tokens.

    Args:
        max_documents: size of the sample; None for all documents.
        length: of the sequences in a row that a model sees; None for `block_size`.
    """
    documents = np.unique(split.segments[:, Segment.DOCUMENT])
    if max_documents is not None:
        documents = documents[sample(len(documents), max_documents)]
    segments = split.segments[np.isin(split.segments[:, Segment.DOCUMENT], documents)]
    starts, lengths = segments[:, Segment.START], segments[:, Segment.LENGTH]
    rows, row = np.unique(starts // split.block_size, return_inverse=True)
    ends = np.zeros(len(rows), np.int64)
    np.maximum.at(ends, row, starts % (length or split.block_size) + lengths)
    return Selection(rows[np.argsort(-ends, kind="stable")], segments)


@dataclass(frozen=True)
class Scores:
    """Sums over the trained tokens of each piece of a document, all of shape (pieces,).

    Attributes:
        document: number of the document that the piece belongs to.
        group: number of the first document of its group.
        nll: negative log-likelihood, nats.
        tokens: number of trained tokens, including stop tokens.
        bytes: UTF-8 bytes of text that they cover.
        correct: tokens that the model found likeliest.
    """

    document: NDArray[np.int64]
    group: NDArray[np.int64]
    nll: NDArray[np.float64]
    tokens: NDArray[np.int64]
    bytes: NDArray[np.int64]
    correct: NDArray[np.int64]

    @classmethod
    def of_nothing(cls, split: StoredSplit, selection: Selection) -> Self:
        """The scores of selected pieces before any is scored: zero."""
        document, size = (
            np.array(selection.segments[:, column]) for column in (Segment.DOCUMENT, Segment.BYTES)
        )
        nll = np.zeros(len(document))
        tokens, correct = np.zeros((2, len(document)), np.int64)
        return cls(document, split.groups(document), nll, tokens, size, correct)

    def add(self, batch: Arrays) -> None:
        """Add what `score_batches` yields of a batch."""
        for name in ("nll", "tokens", "correct"):
            getattr(self, name)[batch["pieces"]] += batch[name]

    def sums(self) -> NDArray[np.float64]:
        """The sums that `figures` takes, for each piece, shape (pieces, 4)."""
        columns = self.nll, self.tokens, self.bytes, self.correct
        return np.stack(columns, axis=1).astype(np.float64)


def figures(sums: NDArray[np.float64]) -> dict[str, float]:
    """Compute the figures of a language model from a sum of `Scores.sums` over pieces, shape (4,).

    Returns:
        `loss`: nats per token; `perplexity`: its exponential; `bits_per_byte`: bits per byte of
        text, including those of the stop tokens, NaN without text; `accuracy`: share of the tokens
        that the model found likeliest.
    """
    nll, tokens, size, correct = sums.tolist()
    loss = nll / tokens
    return {
        "loss": loss,
        "perplexity": float(np.exp(loss)),
        # A resample of few pieces can consist of stop tokens only.
        "bits_per_byte": nll / math.log(2) / size if size else math.nan,
        "accuracy": correct / tokens,
    }


def total(parts: Sequence[Scores]) -> Scores:
    """Add up the scores of all workers, each of which has scored different rows."""
    return replace(
        parts[0],
        nll=np.sum([part.nll for part in parts], axis=0),
        tokens=np.sum([part.tokens for part in parts], axis=0),
        correct=np.sum([part.correct for part in parts], axis=0),
    )


def score(
    model: PreTrainedModel,
    split: StoredSplit,
    selection: Selection,
    batches: Iterable[NDArray[np.int64]],
    sequences: Callable[[Rows], Rows] = lambda rows: rows,
) -> Scores:
    """Score the selected pieces in batches of rows; see `score_batches`.

    Pieces in other rows than those of the batches have zeros.
    """
    scores = Scores.of_nothing(split, selection)
    for batch in score_batches(model, split, selection, batches, sequences):
        scores.add(batch)
    return scores


@torch.no_grad()
def score_batches(
    model: PreTrainedModel,
    split: StoredSplit,
    selection: Selection,
    batches: Iterable[NDArray[np.int64]],
    sequences: Callable[[Rows], Rows] = lambda rows: rows,
) -> Iterator[Arrays]:
    """Yield the scores of the selected pieces in each batch of rows, in the model's precision.

    Columns behind the last trained token of a batch aren't computed. If memory is too small for a
    batch, it is scored in parts.

    Args:
        batches: rows of the selection.
        sequences: makes the sequences that the model sees of rows; it keeps the offsets of tokens
            in the flattened rows.

    Returns:
        The numbers of the `pieces` with trained tokens; their `nll`, `tokens` and `correct`.
    """
    module = TokenLoss(model, has_plain_head(model))
    starts = selection.segments[:, Segment.START]

    def prepare(rows: NDArray[np.int64]) -> _PreparedBatch:
        inputs = sequences(selection.read(split, rows))
        batch = make_batch(_without_rest(inputs))
        sequence, column = np.divmod(batch.target_indices.numpy(), batch.input_ids.shape[1])
        row, offset = np.divmod(sequence * inputs["tokens"].shape[1] + column, split.block_size)
        piece = np.searchsorted(starts, rows[row] * split.block_size + offset, side="right") - 1
        return piece, batch.pin_memory() if model.device.type == "cuda" else batch

    last: list[_TokenScores] | None = None
    with varlen_if_possible(model) as module.attention:
        for rows, ready in prefetch((rows, prepare(rows)) for rows in batches):

            def score_rows(
                some: Sequence[np.int64], count: int = len(rows), whole: _PreparedBatch = ready
            ) -> list[_TokenScores]:
                piece, batch = whole if len(some) == count else prepare(np.asarray(some))
                return [(piece, *module.scores(batch.to(model.device)))]

            scores = split_on_out_of_memory(score_rows, list(rows))
            if last is not None:
                # While a GPU computes this batch.
                yield _of_pieces(last)
            last = scores
    if last is not None:
        yield _of_pieces(last)


def _of_pieces(scores: Sequence[_TokenScores]) -> Arrays:
    """The scores of tokens, added up for each piece in the order of the tokens."""
    piece = np.concatenate([piece for piece, *_ in scores])
    # Tokens of a piece are side by side, so there is less to sort.
    starts = np.flatnonzero(np.diff(piece, prepend=-1))
    pieces, places = np.unique(piece[starts], return_inverse=True)
    places = np.repeat(places, np.diff(starts, append=len(piece)))
    nll = np.zeros(len(pieces))
    tokens, correct = np.zeros((2, len(pieces)), np.int64)
    np.add.at(nll, places, torch.cat([losses.double().cpu() for _, losses, _ in scores]).numpy())
    np.add.at(tokens, places, 1)
    np.add.at(correct, places, torch.cat([hits.cpu() for *_, hits in scores]).numpy())
    return {"pieces": pieces, "nll": nll, "tokens": tokens, "correct": correct}


def _without_rest(rows: Rows) -> Rows:
    """Rows without columns, in steps of 64, behind the last trained token of all of them."""
    tokens, flags = rows["tokens"], rows["flags"]
    behind = int((flags & TRAINED).max(axis=0)[::-1].argmax())
    width = tokens.shape[1] - behind // _COLUMNS_AT_ONCE * _COLUMNS_AT_ONCE
    cut = np.empty(len(rows), row_type(width, tokens.dtype))
    cut["tokens"], cut["flags"] = tokens[:, :width], flags[:, :width]
    return cut
