"""Rows of tokens with the likeliest tokens of a teacher, in the format that is stored on disk.

The fields `teacher_tokens` and `teacher_logs`, both of shape (most, k), have an entry for each
trained token of the row, in reading order: the k tokens that the teacher finds likeliest in its
place, and the logarithms of their probabilities. In 16 bits, a probability is within 1e-4.
"""

import numpy as np
from numpy.typing import NDArray

from moray.rows.store import Record, Rows
from moray.tasks.language.rows import is_trained

LOG = np.dtype("<f2")


def with_teacher(record: Record, most: int, top_k: int) -> Record:
    """The fields of a record and those of a teacher, for at most `most` trained tokens in a row."""
    assert record.names
    fields = [(name, record[name].base, record[name].shape) for name in record.names]
    shape = most, top_k
    tokens = record["tokens"].base
    return np.dtype([*fields, ("teacher_tokens", tokens, shape), ("teacher_logs", LOG, shape)])


def has_entry(rows: Rows, most: int) -> NDArray[np.bool_]:
    """Which of the entries of a teacher are of a trained token, shape (rows, most)."""
    numbers = is_trained(rows).sum(axis=1)
    entries: NDArray[np.bool_] = np.arange(most) < numbers[:, None]
    return entries
