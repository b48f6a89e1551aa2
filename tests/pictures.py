"""Small datasets of images, models and stores, all made by the package itself."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moray.config.schema.base import result_keys
from moray.config.schema.models import ScratchVisionModel
from moray.stages.base_model import base_model
from moray.stages.download import download
from moray.tasks.images.decode import decode

DIGITS = {"source": "digits", "format": "images", "validation_share": 0.1, "test_share": 0.1}
RESNET: dict[str, Any] = {
    "architecture": "resnet",
    "resnet": {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8},
}
VIT: dict[str, Any] = {
    "architecture": "vit",
    "vit": {
        "patch_size": 4,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
}


def model_section(**keys: Any) -> dict[str, Any]:
    """The section of a model from scratch."""
    section = {"source": "scratch-vision", "classes_of": "digits", **keys}
    return result_keys(ScratchVisionModel(**section))


def make_digits(folder: Path, **model: Any) -> Path:
    """A folder with `dataset`, `model` and `pixels`, of scikit-learn's digits."""
    download(folder / "dataset", DIGITS)
    base_model(folder / "model", model_section(**model), folder / "dataset", modality="images")
    decode(folder / "dataset", folder / "model", folder / "pixels", {"format": "images"})
    return folder


def colours(height: int, width: int, seed: int = 0) -> Image.Image:
    """An image of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def image_folder(folder: Path, classes: dict[str, int], height: int = 8, width: int = 8) -> Path:
    """A folder with so many images of each class."""
    seed = 0
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            colours(height, width, seed).save(folder / name / f"{number:03}.png")
            seed += 1
    return folder


def write_idx(path: Path, values: NDArray[np.uint8]) -> Path:
    """An IDX file of bytes, compressed if its name says so."""
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    content = header + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
