"""Rows as tensors for a model."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moray.rows.order import Drawn
from moray.rows.store import Rows
from moray.tasks.images.augmentation import Augmentation, augmented

# The label of padding, which has no loss.
IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Images and their labels.

    Attributes:
        pixels: normalised, fp32, shape (images, channels, height, width).
        labels: shape (images,).
    """

    pixels: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Self:
        """A copy of the batch on a device."""
        return type(self)(
            self.pixels.to(device, non_blocking=True), self.labels.to(device, non_blocking=True)
        )


@dataclass(frozen=True)
class Normalization:
    """What is done with the pixels of each channel: multiply, then add.

    Attributes:
        scale: shape (channels, 1, 1).
        offset: shape (channels, 1, 1).
    """

    scale: NDArray[np.float32]
    offset: NDArray[np.float32]

    @classmethod
    def of(cls, section: dict[str, list[float]]) -> Self:
        """From a store's manifest."""
        columns = (np.array(section[key], np.float32) for key in ("scale", "offset"))
        return cls(*(column.reshape(-1, 1, 1) for column in columns))


def make_batch(
    rows: Rows,
    normalization: Normalization,
    augmentation: Augmentation | None = None,
    drawn: Drawn | None = None,
) -> Batch:
    """Make a batch of rows, without their padding.

    Padding would count in BatchNorm's statistics. A batch of nothing else keeps one image, without
    a label, because workers that shard a model have to compute together.

    Args:
        rows: shape (rows,).
        normalization: what is done with pixels.
        augmentation: how images are changed.
        drawn: where in the order's sequence they are; None for held-out images, which stay as they
            are.
    """
    filled = np.flatnonzero(rows["filled"])
    # Fields of a record aren't contiguous.
    pixels = np.ascontiguousarray(rows["pixels"][filled])
    labels = rows["label"][filled].astype(np.int64)
    if not len(filled):
        pixels, labels = np.zeros_like(rows["pixels"][:1]), np.array([IGNORED])
    elif augmentation and drawn:
        pixels = augmented(pixels, augmentation, drawn.at(filled))
    values = pixels * normalization.scale
    values += normalization.offset
    return Batch(torch.from_numpy(values), torch.from_numpy(labels))
