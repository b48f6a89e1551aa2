"""Rows of a store as the tensors that a model takes."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moray.tokens.store import Segment, Split

IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Rows with documents packed side by side.

    Attributes:
        input_ids: shape (rows, block_size).
        position_ids: shape (rows, block_size); restart at each document, which is what keeps
            attention inside documents.
        labels: the token that follows each place, shape (rows, block_size); `IGNORED` where it
            is not trained.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Self:
        """The batch on a device."""
        return type(self)(
            *(
                tensor.to(device, non_blocking=True)
                for tensor in (self.input_ids, self.position_ids, self.labels)
            )
        )


def make_batch(split: Split, rows: NDArray[np.int64]) -> Batch:
    """Some rows of a split as a batch, in the order given."""
    tokens = torch.from_numpy(split.tokens[rows].astype(np.int64))
    labels = torch.full_like(tokens, IGNORED)
    following = torch.from_numpy(split.mask[rows][:, 1:].astype(bool))
    labels[:, :-1] = torch.where(following, tokens[:, 1:], IGNORED)
    return Batch(tokens, torch.from_numpy(_positions(split, rows)), labels)


def num_trained(split: Split, rows: NDArray[np.int64]) -> int:
    """Tokens of some rows that are trained."""
    return int(split.mask[rows].sum())


def _positions(split: Split, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.arange(split.block_size)
    starts = np.zeros((len(rows), split.block_size), np.int64)
    for index, row in enumerate(rows):
        segments = split.segments_of(int(row))
        firsts = segments[:, Segment.START]
        starts[index, firsts] = firsts
        # Padding counts as a document of its own.
        end = int(firsts[-1] + segments[-1, Segment.LENGTH])
        if end < split.block_size:
            starts[index, end] = end
    return places - np.maximum.accumulate(starts, axis=1)
