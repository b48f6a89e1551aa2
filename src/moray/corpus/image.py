"""Images in files of any type that Pillow reads."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from moray.corpus.dataset import Document
from moray.errors import UserError, first_line

# Pixels of these modes have more than 8 bits.
_DEEP = ("I", "F")
# Pillow reads colours of 16 bits too, but keeps 8 of them; this is in its names for how they lie in
# files. In BMP, 16 bits are those of three colours together.
_OF_16_BITS = re.compile("(?<!BGR);16")
# Types of files that can have several images, of which the first one is read. Others, such as MPO,
# have previews behind it.
_OF_SEVERAL = ("GIF", "PNG", "TIFF", "WEBP")


def decoded(content: bytes, place: str) -> Image.Image:
    """Decode an image; it is turned upright if its metadata says so. Errors name the place.

    Raises:
        UserError: if it can't be decoded, or has more than 8 bits per channel.
    """
    try:
        opened = Image.open(io.BytesIO(content))
        layout = str(getattr(opened, "tile", ""))
        image = ImageOps.exif_transpose(opened)
        image.load()
    # Decoders raise many kinds of errors for damaged files.
    except Exception as error:
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "no image of a type that Pillow reads" if unknown else first_line(error)
        problem = "the file is empty" if not content else f"can't read the image ({reason})"
        raise UserError(place, problem, "replace the file or remove it") from error
    if image.mode.startswith(_DEEP) or _OF_16_BITS.search(layout):
        raise UserError(
            place,
            f"got pixels of more than 8 bits (Pillow's mode {image.mode}), expected 8",
            "convert the image",
        )
    return image


def has_several(content: bytes) -> bool:
    """Whether a file that can be decoded has several frames or pages."""
    image = Image.open(io.BytesIO(content))
    return image.format in _OF_SEVERAL and bool(getattr(image, "is_animated", False))


def as_png(image: Image.Image) -> bytes:
    """Encode an image as PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


class ImageFacts:
    """What is known of the images of a dataset once all of them have been seen."""

    def __init__(self, label_names: list[str]) -> None:
        self._label_names = label_names
        self._size: list[int] | None = None
        self._sizes_differ = False
        self._trained: Counter[int] = Counter()
        self._held_out: Counter[int] = Counter()
        self._with_several = 0

    def follow(self, rows: Iterable[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
        """Yield the rows, after checking that each image can be decoded.

        Raises:
            UserError: naming the image that can't be, or whose label has no name.
        """
        for split, document in rows:
            if not 0 <= document["label"] < len(self._label_names):
                raise UserError(
                    document["place"],
                    f"got label {document['label']}, expected 0 to {len(self._label_names) - 1}",
                    "fix the label",
                )
            image = decoded(document["image"], document["place"])
            size = [image.height, image.width]
            self._sizes_differ |= self._size not in (None, size)
            self._size = size
            (self._trained if split == "train" else self._held_out)[document["label"]] += 1
            self._with_several += has_several(document["image"])
            yield split, document

    def facts(self) -> dict[str, Any]:
        """For `dataset.json`: names of the labels; height and width, None if they differ."""
        size = None if self._sizes_differ else self._size
        return {"label_names": self._label_names, "image_size": size}

    def told(self) -> Iterator[str]:
        """What a user should know of them: mostly nothing."""
        if self._with_several:
            count = f"{self._with_several:,}"
            yield f"files with several frames or pages, of which the first is read: {count}"
        if untrained := self._untrained():
            yield untrained

    def _untrained(self) -> str:
        numbers = [number for number in range(len(self._label_names)) if not self._trained[number]]
        if not numbers:
            return ""
        held_out = sum(self._held_out[number] for number in numbers)
        names = ", ".join(self._label_names[number] for number in numbers[:5])
        return (
            f"{len(numbers)} of {len(self._label_names)} classes have no images to train on "
            f"({held_out:,} held out): {names}{', …' if len(numbers) > 5 else ''}"
        )
