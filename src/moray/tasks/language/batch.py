"""Rows as tensors for a model."""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moray.rows.store import Rows
from moray.tasks.language.rows import FIRST, is_trained


@dataclass(frozen=True)
class Batch:
    """Rows of packed documents.

    Attributes:
        input_ids: shape (rows, block_size).
        position_ids: shape (rows, block_size); restart at each document, which keeps attention
            inside documents.
        target_indices: indices, into the flattened rows, of the tokens that precede a trained
            token, in reading order, shape (trained tokens,).
        targets: the trained tokens, shape (trained tokens,).
        cu_seqlens: where each piece begins in the flattened rows, then where the last one ends,
            int32, shape (a power of two,): the end is repeated, so that compiled code sees only
            a few shapes.
    """

    input_ids: Tensor
    position_ids: Tensor
    target_indices: Tensor
    targets: Tensor
    cu_seqlens: Tensor

    def to(self, device: torch.device) -> Self:
        """A copy of the batch on a device."""
        tensors = (getattr(self, field.name) for field in fields(self))
        return type(self)(*(tensor.to(device, non_blocking=True) for tensor in tensors))


def make_batch(rows: Rows) -> Batch:
    """Make a batch of rows."""
    # In NumPy, not PyTorch, because this runs in parallel with the training steps. PyTorch would
    # give this thread its own pool of threads, and with more threads than cores, OpenMP puts all
    # of them to sleep at each barrier.
    tokens = rows["tokens"].astype(np.int64)
    row, column = np.nonzero(is_trained(rows)[:, 1:])
    # Computed on the CPU: on a GPU, the host would have to wait for the result.
    indices = row * tokens.shape[1] + column
    targets = tokens.ravel()[indices + 1]
    arrays = (tokens, _positions(rows), indices, targets, _cu_seqlens(rows))
    return Batch(*map(torch.from_numpy, arrays))


def num_trained(rows: Rows) -> int:
    """Number of trained tokens in rows."""
    return int(is_trained(rows).sum())


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
    ends = np.full(1 << len(starts).bit_length(), first.size, np.int32)
    ends[: len(starts)] = starts
    return ends
