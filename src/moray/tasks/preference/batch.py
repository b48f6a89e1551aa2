"""Rows of pairs as tensors for a model."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moray.rows.store import Rows
from moray.tasks.language.batch import Batch, make_batch
from moray.tasks.language.rows import FIRST, TRAINED
from moray.tasks.preference.rows import as_sequences, num_pairs


@dataclass(frozen=True)
class PairBatch(Batch):
    """Rows of packed pairs; of the attributes, those that a `Batch` doesn't have.

    Attributes:
        pieces: the piece of each trained token, shape (trained tokens,): 2i for the chosen answer
            of pair i, 2i + 1 for the rejected one.
        reference: log-probabilities of the answers under the reference, nats, fp32, shape
            (pairs, 2): chosen, rejected.
    """

    pieces: Tensor
    reference: Tensor


def make_pair_batch(rows: Rows, packing: bool) -> PairBatch:
    """Make a batch of rows.

    Args:
        rows: rows with the field `reference`.
        packing: whether pairs share rows; see `as_sequences`.
    """
    batch = make_batch(as_sequences(rows, packing))
    flags = rows["flags"].ravel()
    # Each piece has a trained token, and padding has none.
    trained = np.cumsum(flags & FIRST != 0)[flags & TRAINED != 0]
    _, pieces = np.unique(trained, return_inverse=True)
    reference = rows["reference"]
    filled = np.arange(reference.shape[1]) < num_pairs(rows)[:, None]
    return PairBatch(
        **vars(batch),
        pieces=torch.from_numpy(pieces),
        reference=torch.from_numpy(reference[filled]),
    )
