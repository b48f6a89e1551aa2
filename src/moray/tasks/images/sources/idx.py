"""Images in IDX files, the format of MNIST: a header and then one byte for each pixel."""

import gzip
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moray.config.schema.image_datasets import Idx
from moray.config.splits import idx_files_by_split
from moray.corpus.dataset import Document
from moray.corpus.sources import OpenSource
from moray.errors import UserError, first_line
from moray.provenance.manifest import sha256_file
from moray.tasks.images.image_files import as_png
from moray.tasks.images.sources import open_images

# The third byte of the header: numbers are unsigned bytes.
_BYTES = 8
_GZIP = b"\x1f\x8b"


def open_source(section: Idx, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Open the two files of each split."""
    by_split: Mapping[str, dict[str, Path]] = {
        split: {key: Path(path) for key, path in paths.items()}
        for split, paths in idx_files_by_split(section.train, section.test).items()
    }
    names = label_names([paths["labels"] for paths in by_split.values()])
    splits = {split: partial(images, **paths) for split, paths in by_split.items()}
    every = [path for paths in by_split.values() for path in paths.values()]
    origin = {"files": {str(path): sha256_file(path) for path in every}}
    return open_images(splits, origin, names)


def images(images: Path, labels: Path) -> Iterator[Document]:
    """Yield each image with its label.

    Raises:
        UserError: if a file isn't of the format, or they don't belong together.
    """
    pixels, numbers = _read(images, 3), _read(labels, 1)
    if len(pixels) != len(numbers):
        raise UserError(
            str(labels),
            f"got {len(numbers)} labels for the {len(pixels)} images of {images}",
            "use the two files of one split",
        )
    for number, (grey, label) in enumerate(zip(pixels, numbers, strict=True)):
        yield Document(
            image=as_png(Image.fromarray(grey)),
            label=int(label),
            # Versions of the encoder may give different files.
            group=grey.tobytes().hex(),
            place=f"{images}, image {number}",
        )


def label_names(files: Sequence[Path]) -> list[str]:
    """The numbers from 0 to the highest label."""
    return [str(number) for number in range(max(int(_read(file, 1).max()) for file in files) + 1)]


def _read(file: Path, dimensions: int) -> NDArray[np.uint8]:
    content = _content(file)
    header = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, _BYTES, dimensions]) or len(content) < header:
        raise UserError(
            str(file),
            f"got no IDX file of bytes in {dimensions} dimension{'s' if dimensions > 1 else ''}",
            "check the path",
        )
    shape = tuple(np.frombuffer(content, ">u4", dimensions, 4).tolist())
    expected = header + math.prod(shape)
    if len(content) != expected or not shape[0]:
        raise UserError(
            str(file),
            f"got {len(content)} bytes, expected {expected} for the shape in its header, "
            f"{' x '.join(map(str, shape))}",
            "download the file again",
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            str(file), f"can't decompress it ({first_line(error)})", "download the file again"
        ) from error
