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
        target_indices: of the tokens before a trained one, in reading order, into the flattened
            rows, shape (trained tokens,).
        targets: those trained tokens, shape (trained tokens,).
        cu_seqlens: where pieces begin in the flattened rows, and where the last one ends, int32,
            shape (a power of two,): the end is repeated, so that compiled code sees few shapes.
    """

    input_ids: Tensor
    position_ids: Tensor
    target_indices: Tensor
    targets: Tensor
    cu_seqlens: Tensor

    def to(self, device: torch.device) -> Self:
        """The batch on a device."""
        return type(self)(
            *(
                tensor.to(device, non_blocking=True)
                for tensor in (
                    self.input_ids,
                    self.position_ids,
                    self.target_indices,
                    self.targets,
                    self.cu_seqlens,
                )
            )
        )


def make_batch(rows: Rows) -> Batch:
    """Some rows as a batch."""
    # Not computed by PyTorch, because this runs beside the steps: its thread would get a pool of
    # threads, and with more of these than cores, OpenMP puts all of them to sleep at each barrier.
    tokens = rows["tokens"].astype(np.int64)
    row, column = np.nonzero(is_trained(rows)[:, 1:])
    # Known here, where the rows are: on a GPU, finding them would make the host wait for it.
    indices = row * tokens.shape[1] + column
    targets = tokens.ravel()[indices + 1]
    arrays = (tokens, _positions(rows), indices, targets, _cu_seqlens(rows))
    return Batch(*map(torch.from_numpy, arrays))


def num_trained(rows: Rows) -> int:
    """Tokens of some rows that are trained."""
    return int(is_trained(rows).sum())


def _positions(rows: Rows) -> NDArray[np.int64]:
    """Positions, counted from the first token of the piece, shape (rows, block_size)."""
    flags = rows["flags"]
    columns = np.arange(flags.shape[1])
    starts = np.where(flags & FIRST, columns, 0)
    return columns - np.maximum.accumulate(starts, axis=1)


def _cu_seqlens(rows: Rows) -> NDArray[np.int32]:
    first = (rows["flags"] & FIRST).astype(bool)
    # A piece never goes on in the next row.
    first[:, :1] = True
    starts = np.flatnonzero(first)
    ends = np.full(1 << len(starts).bit_length(), first.size, np.int32)
    ends[: len(starts)] = starts
    return ends
