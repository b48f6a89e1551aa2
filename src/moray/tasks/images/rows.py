"""Rows: an image as pixels, and the number of its label."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.rows.store import Record, Rows


def row_type(shape: Sequence[int]) -> Record:
    """The NumPy type of a row.

    Fields: `pixels`, shape (channels, height, width); `label`; `filled`, 1, which tells a row from
    padding.
    """
    return np.dtype([("pixels", "u1", tuple(shape)), ("label", "<u4"), ("filled", "u1")])


def make_rows(pixels: Sequence[NDArray[np.uint8]], labels: Sequence[Any], record: Record) -> Rows:
    """Rows of images and their labels."""
    rows = np.ones(len(pixels), record)
    rows["pixels"] = pixels
    rows["label"] = labels
    return rows
