"""What a model's image processor makes of images, beside what moray makes of its stored pixels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from transformers import AutoImageProcessor


class Values(NamedTuple):
    """Two values of the same pixel: moray's and the processor's own."""

    ours: float
    theirs: float

    @property
    def differ(self) -> bool:
        """Whether it is more than rounding: of 8 bits, a step is at least 0.004 of the largest."""
        return not abs(self.ours - self.theirs) <= 1e-4 * max(1.0, abs(self.theirs))


def furthest_apart(
    folder: Path,
    images: Sequence[Image.Image],
    pixels: NDArray[np.uint8],
    normalization: Mapping[str, Sequence[float]],
) -> Values:
    """The values of the pixel for which moray and the processor of a folder differ the most.

    The processor gets images as transformers' pipelines give them. NaN stands for its value if it
    makes another shape of an image.

    Args:
        images: images as they are opened.
        pixels: what is stored of each, shape (images, channels, height, width).
        normalization: `scale` and `offset` of each channel.
    """
    processor: Any = AutoImageProcessor.from_pretrained(folder, backend="pil")
    mode = "RGB" if pixels.shape[1] == 3 else "L"
    upright = (ImageOps.exif_transpose(image).convert(mode) for image in images)
    theirs = [np.asarray(processor(image)["pixel_values"][0], np.float64) for image in upright]
    scale, offset = (np.reshape(normalization[key], (-1, 1, 1)) for key in ("scale", "offset"))
    found = Values(0.0, 0.0)
    for own, expected in zip(pixels * scale + offset, theirs, strict=True):
        if own.shape != expected.shape:
            return Values(float(own.flat[0]), float("nan"))
        place = np.unravel_index(np.abs(own - expected).argmax(), own.shape)
        here = Values(float(own[place]), float(expected[place]))
        found = max(found, here, key=lambda values: abs(values.ours - values.theirs))
    return found
