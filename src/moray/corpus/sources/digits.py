"""The handwritten digits of scikit-learn: 1,797 grey images of 8 x 8 pixels."""

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
from PIL import Image

from moray.corpus.document import Document
from moray.corpus.image import as_png

LABEL_NAMES = [str(digit) for digit in range(10)]

# Pixels are 0 to 16.
_SCALE = 255 / 16


def revision() -> str:
    """The version of the library that has the images."""
    return f"scikit-learn {version('scikit-learn')}"


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
