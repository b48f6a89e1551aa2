"""The image processor of a model: how images become its input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor, ViTImageProcessorPil

from moray.errors import UserError, first_line
from moray.model.folder import LOCAL


def save_processor(folder: Path, image_size: int, num_channels: int) -> None:
    """Write an image processor that resizes to a square, with values from -1 to 1."""
    half = [0.5] * num_channels
    size = {"height": image_size, "width": image_size}
    ViTImageProcessorPil(size=size, image_mean=half, image_std=half).save_pretrained(folder)


def load_processor(folder: Path) -> Any:
    """Load the image processor of a Hugging Face folder.

    Raises:
        UserError: if there is none.
    """
    try:
        return AutoImageProcessor.from_pretrained(
            # Computes with Pillow, so that results don't depend on what else is installed.
            folder,
            backend="pil",
            **LOCAL,
        )
    except (OSError, ValueError, ImportError) as error:
        raise UserError(
            str(folder),
            f"can't load the image processor ({first_line(error)})",
            "check its preprocessor_config.json",
        ) from error


def pixels_of(
    images: Sequence[Image.Image], processor: Any, num_channels: int
) -> list[NDArray[np.uint8]]:
    """Bring images to a model's channels and size.

    Args:
        images: images of any mode.
        processor: resizes and crops them.
        num_channels: 3 for colour, 1 for grey.

    Returns:
        For each image, shape (channels, height, width).
    """
    # As transformers' pipelines do, so that a model gets the same input there.
    converted = [image.convert("RGB" if num_channels == 3 else "L") for image in images]
    made = processor(converted, do_rescale=False, do_normalize=False)["pixel_values"]
    return [np.asarray(one, np.uint8) for one in made]


def normalization(processor: Any, num_channels: int) -> dict[str, list[float]]:
    """How a processor makes values of pixels: `scale` and `offset` of each channel."""
    rescale = processor.rescale_factor if processor.do_rescale else 1.0
    mean, std = [0.0] * num_channels, [1.0] * num_channels
    if processor.do_normalize:
        mean, std = list(processor.image_mean), list(processor.image_std)
    return {
        "scale": [rescale / deviation for deviation in std],
        "offset": [-average / deviation for average, deviation in zip(mean, std, strict=True)],
    }
