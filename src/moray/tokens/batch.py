"""Rows as the tensors that a model takes."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moray.tokens.rows import FIRST, Rows, is_trained


@dataclass(frozen=True)
class Batch:
    """Rows with documents packed side by side.

    Attributes:
        input_ids: shape (rows, block_size).
        position_ids: shape (rows, block_size); restart at each document, which is what keeps
            attention inside documents.
        places: where the next token is trained, in reading order, as indices into the flattened
            rows, shape (trained tokens,).
        targets: those next tokens, shape (trained tokens,).
    """

    input_ids: Tensor
    position_ids: Tensor
    places: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> Self:
        """The batch on a device."""
        return type(self)(
            *(
                tensor.to(device, non_blocking=True)
                for tensor in (self.input_ids, self.position_ids, self.places, self.targets)
            )
        )


def make_batch(rows: Rows) -> Batch:
    """Some rows as a batch."""
    # Not computed by PyTorch, because this runs beside the steps: its thread would get a pool of
    # threads, and with more of these than cores, OpenMP puts all of them to sleep at each barrier.
    tokens = rows["tokens"].astype(np.int64)
    row, column = np.nonzero(is_trained(rows)[:, 1:])
    # Known here, where the rows are: on a GPU, finding them would make the host wait for it.
    places = row * tokens.shape[1] + column
    targets = tokens.ravel()[places + 1]
    return Batch(*map(torch.from_numpy, (tokens, _positions(rows), places, targets)))


def num_trained(rows: Rows) -> int:
    """Tokens of some rows that are trained."""
    return int(is_trained(rows).sum())


def _positions(rows: Rows) -> NDArray[np.int64]:
    """Places counted from the first token of the piece, shape (rows, block_size)."""
    flags = rows["flags"]
    places = np.arange(flags.shape[1])
    starts = np.where(flags & FIRST, places, 0)
    return places - np.maximum.accumulate(starts, axis=1)
