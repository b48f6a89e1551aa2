"""Image processors: what is stored of images, and what becomes of it, against the library's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from numpy.typing import NDArray
from pictures import colours
from transformers import AutoImageProcessor
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

from moray.errors import UserError
from moray.tasks.images.image_processor import (
    check_pixels,
    check_processor,
    load_processor,
    normalization,
    pixels_of,
)


def processors() -> list[Any]:
    """The classes for models that classify images, as they are without torchvision."""
    known = (
        IMAGE_PROCESSOR_MAPPING_NAMES.get(kind, {})
        for kind in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    )
    # The first needs clusters of colours, the second makes patches, the third needs torchvision.
    others = {"ImageGPTImageProcessorPil", "Siglip2ImageProcessorPil", "TimmWrapperImageProcessor"}
    names = sorted({classes["pil"] for classes in known if "pil" in classes} - others)
    # Donut's images have 2,560 x 1,920 pixels.
    return [
        pytest.param(name, marks=[pytest.mark.long] * name.startswith("Donut")) for name in names
    ]


def saved(folder: Path, name: str, **keys: Any) -> Path:
    """A folder with an image processor of a class."""
    getattr(transformers, name)(**keys).save_pretrained(folder)
    return folder


def both(folder: Path, channels: int = 3) -> tuple[NDArray[Any], NDArray[Any]]:
    """What moray stores and normalises of an image, and what the processor makes of it."""
    image = colours(60, 80, 1)
    processor = load_processor(folder)
    (pixels,) = pixels_of([image], processor, channels)
    scaling = normalization(processor, channels)
    scale, offset = (np.reshape(scaling[key], (channels, 1, 1)) for key in ("scale", "offset"))
    own = AutoImageProcessor.from_pretrained(folder, backend="pil")
    theirs = own(image.convert("RGB" if channels == 3 else "L"))["pixel_values"][0]
    return pixels * scale + offset, np.asarray(theirs)


@pytest.mark.parametrize("name", processors())
def test_each_processor_of_the_library_makes_the_same_of_an_image(
    name: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path, name)
    ours, theirs = both(folder)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    check_processor(folder, 3)


@pytest.mark.parametrize("include_top", [True, False])
@pytest.mark.parametrize("rescale_offset", [True, False])
@pytest.mark.parametrize("do_normalize", [True, False])
def test_a_processor_that_shifts_and_divides_twice(
    include_top: bool, rescale_offset: bool, do_normalize: bool, tmp_path: Path
) -> None:
    keys = {"rescale_offset": rescale_offset, "rescale_factor": 1 / 127.5}
    keys |= {"include_top": include_top, "do_normalize": do_normalize}
    size = {"height": 32, "width": 24}
    folder = saved(tmp_path, "EfficientNetImageProcessorPil", size=size, **keys)
    ours, theirs = both(folder)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    check_processor(folder, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_one_mean_and_deviation_hold_for_all_channels(channels: int, tmp_path: Path) -> None:
    keys = {"size": {"height": 32, "width": 24}, "image_mean": 0.4, "image_std": 0.3}
    ours, theirs = both(saved(tmp_path, "ViTImageProcessorPil", **keys), channels)
    assert ours.shape == (channels, 32, 24)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_processor_that_makes_patches_costs_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        check_processor(saved(tmp_path, "Siglip2ImageProcessorPil"), 3)
    assert str(caught.value) == (
        "model: its image processor, Siglip2ImageProcessorPil, makes an array of shape (256, 768) "
        "of an image, expected pixels of 8 bits; choose a model whose image processor resizes, "
        "crops, rescales and normalises"
    )


def test_a_processor_that_makes_numbers_of_colours_costs_one_line(tmp_path: Path) -> None:
    clusters = [[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]
    folder = saved(tmp_path, "ImageGPTImageProcessorPil", clusters=clusters)
    with pytest.raises(
        UserError, match=r"^model: its image processor, ImageGPTImageProcessorPil, "
    ):
        check_processor(folder, 3)


def test_other_pixels_than_the_processor_s_cost_one_line_with_both(tmp_path: Path) -> None:
    folder = saved(tmp_path, "ViTImageProcessorPil", size={"height": 32, "width": 24})
    image, processor = colours(60, 80, 1), load_processor(folder)
    pixels, scaling = np.stack(pixels_of([image], processor, 3)), normalization(processor, 3)
    check_pixels(folder, [image], pixels, scaling)
    theirs = pixels[0, 1, 5, 6] / 127.5 - 1
    pixels[0, 1, 5, 6] ^= 1
    ours = pixels[0, 1, 5, 6] / 127.5 - 1
    with pytest.raises(UserError) as caught:
        check_pixels(folder, [image], pixels, scaling)
    assert str(caught.value) == (
        f"model: its image processor makes {theirs:.4g} of a pixel that is {ours:.4g} here, so it "
        "doesn't just resize, crop, rescale and normalise; choose a model with another image "
        "processor"
    )
