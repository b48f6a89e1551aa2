"""The image processor of a model: how images become its input."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor, ViTImageProcessorPil

from moray.errors import UserError, first_line
from moray.model.folder import LOCAL
from moray.tasks.images.proofs import furthest_apart

# EfficientNet's processor has this key: it divides by the deviations once more.
_NORMALIZES_AGAIN = "include_top"


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
            # The error may list all models that have one.
            f"can't load the image processor ({shorten(first_line(error), 300, placeholder='…')})",
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

    Raises:
        UserError: if the processor makes something else of them.
    """
    # Pipelines of transformers convert images so too, and give a model the same input.
    converted = [image.convert("RGB" if num_channels == 3 else "L") for image in images]
    later = {"do_rescale": False, "do_normalize": False}
    if hasattr(processor, _NORMALIZES_AGAIN):
        later[_NORMALIZES_AGAIN] = False
    answer = processor(converted, **later)
    if "pixel_values" not in answer:
        raise _unknown(processor, f"{', '.join(answer)} of an image")
    arrays = [np.asarray(one) for one in answer["pixel_values"]]
    for one in arrays:
        if one.ndim != 3 or len(one) != num_channels:
            raise _unknown(processor, f"an array of shape {one.shape} of an image")
        if one.min() < 0 or one.max() > 255 or (one != np.floor(one)).any():
            raise _unknown(processor, f"values such as {one.flat[one.argmax()]:.4g} of pixels")
    return [one.astype(np.uint8) for one in arrays]


def normalization(processor: Any, num_channels: int) -> dict[str, list[float]]:
    """How a processor makes values of pixels: `scale` and `offset` of each channel.

    Raises:
        UserError: if it has values for another number of channels.
    """
    scale, offset = [1.0] * num_channels, [0.0] * num_channels
    if processor.do_rescale:
        scale = [processor.rescale_factor] * num_channels
        if getattr(processor, "rescale_offset", False):
            offset = [-1.0] * num_channels
    again = getattr(processor, _NORMALIZES_AGAIN, False)
    deviations = _channel_values(processor, "image_std", num_channels) if again else []
    if processor.do_normalize:
        means, stds = (
            _channel_values(processor, key, num_channels) for key in ("image_mean", "image_std")
        )
        scale = [one / std for one, std in zip(scale, stds, strict=True)]
        offset = [(one - mean) / std for one, mean, std in zip(offset, means, stds, strict=True)]
    if again:
        scale = [one / std for one, std in zip(scale, deviations, strict=True)]
        offset = [one / std for one, std in zip(offset, deviations, strict=True)]
    return {"scale": scale, "offset": offset}


def _channel_values(processor: Any, key: str, num_channels: int) -> list[float]:
    """A value for each channel; a single one is for all of them."""
    values: float | Sequence[float] = getattr(processor, key)
    if not isinstance(values, Sequence):
        return [values] * num_channels
    if len(values) != num_channels:
        raise UserError(
            "model",
            f"its image processor has {len(values)} values of {key}, expected {num_channels}, one "
            "for each channel",
            "correct its preprocessor_config.json",
        )
    return [*values]


def _unknown(processor: Any, outcome: str) -> UserError:
    return UserError(
        "model",
        f"its image processor, {type(processor).__name__}, makes {outcome}, expected pixels of 8 "
        "bits",
        "choose a model whose image processor resizes, crops, rescales and normalises",
    )


def check_processor(folder: Path, num_channels: int) -> None:
    """Check on an image of random colours that what is stored becomes what the processor makes.

    Raises:
        UserError: if it doesn't.
    """
    colours = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
    images, processor = [Image.fromarray(colours)], load_processor(folder)
    pixels = np.stack(pixels_of(images, processor, num_channels))
    check_pixels(folder, images, pixels, normalization(processor, num_channels))


def check_pixels(
    folder: Path,
    images: Sequence[Image.Image],
    pixels: NDArray[np.uint8],
    normalization: dict[str, list[float]],
) -> None:
    """Check that stored pixels of images become what the processor of a folder makes of them.

    Raises:
        UserError: with both values where they don't.
    """
    values = furthest_apart(folder, images, pixels, normalization)
    if values.differ:
        raise UserError(
            "model",
            f"its image processor makes {values.theirs:.4g} of a pixel that is {values.ours:.4g} "
            "here, so it doesn't just resize, crop, rescale and normalise",
            "choose a model with another image processor",
        )
