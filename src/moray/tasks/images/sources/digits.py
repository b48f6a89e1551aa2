"""The handwritten digits of scikit-learn: 1,797 grey images of 8 x 8 pixels."""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image

from moray.config.schema.image_datasets import Digits
from moray.corpus.dataset import Document
from moray.corpus.sources import OpenSource
from moray.tasks.images.image_files import as_png
from moray.tasks.images.sources import open_images

_LABEL_NAMES = tuple(str(digit) for digit in range(10))

# Pixels are 0 to 16.
_SCALE = 255 / 16


def open_source(section: Digits, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Open all of them as train."""
    origin = {"revision": f"scikit-learn {version('scikit-learn')}"}
    return open_images({"train": images}, origin, _LABEL_NAMES)


def images() -> Iterator[Document]:
    """Yield each image with its label."""
    # Importing it takes a second.
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        grey = np.round(pixels * _SCALE).astype(np.uint8)
        yield Document(
            image=as_png(Image.fromarray(grey)),
            label=int(label),
            # Versions of the encoder may give different files.
            group=grey.tobytes().hex(),
            place=f"digit {number}",
        )
