"""Sources of images, and what is found out about the images of any of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from moray.corpus.class_labels import similar_names
from moray.corpus.dataset import Document
from moray.corpus.parts import ready_parts
from moray.corpus.sources import OpenSource
from moray.corpus.staging import Look
from moray.errors import UserError
from moray.tasks.images.image_files import decode_image, has_several


class ImageSurvey:
    """The `Survey` of a dataset of images; `label_names` are those of its classes."""

    noun = "image"

    def __init__(self, label_names: Sequence[str]) -> None:
        self._label_names = [*label_names]
        self._size: list[int] | None = None
        self._sizes_differ = False
        self._trained: Counter[int] = Counter()
        self._held_out: Counter[int] = Counter()
        self._with_several = 0

    def check(self, path: str) -> None:
        if len(self._label_names) < 2:
            raise UserError(path, "got only one class, expected at least two", "add one")

    def note(self, split: str, document: Document) -> None:
        """Note the size and label of an image that was seen.

        Raises:
            UserError: naming the image whose label has no name.
        """
        if not 0 <= document["label"] < len(self._label_names):
            raise UserError(
                document["place"],
                f"got label {document['label']}, expected 0 to {len(self._label_names) - 1}",
                "fix the label",
            )
        size = [document["height"], document["width"]]
        self._sizes_differ |= self._size not in (None, size)
        self._size = size
        (self._trained if split == "train" else self._held_out)[document["label"]] += 1
        self._with_several += document["has_several"]

    def facts(self) -> dict[str, Any]:
        """Names of the labels; height and width, None if they differ."""
        size = None if self._sizes_differ else self._size
        return {"label_names": self._label_names, "image_size": size}

    @property
    def summary(self) -> str:
        return f"images of {len(self._label_names)} classes"

    def lines(self, dataset: str) -> Iterator[str]:
        for names in similar_names(self._label_names):
            yield (
                f"warning: dataset {dataset}: {' and '.join(map(ascii, names))} are classes of "
                "their own, and differ only in case, white space or Unicode form"
            )
        if self._with_several:
            count = f"{self._with_several:,}"
            yield (
                f"dataset {dataset}: files with several frames or pages, of which the first is "
                f"read: {count}"
            )
        if untrained := self._untrained():
            yield f"dataset {dataset}: {untrained}"

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


def see(document: Document) -> Document:
    """Check that an image can be decoded, and add its size.

    Raises:
        UserError: naming the image that can't be.
    """
    image = decode_image(document["image"], document["place"])
    several = has_several(document["image"])
    return Document(**document, height=image.height, width=image.width, has_several=several)


_LOOK = Look(
    see,
    pa.schema([("height", pa.int32()), ("width", pa.int32()), ("has_several", pa.bool_())]),
)


def open_images(
    splits: Mapping[str, Callable[[], Iterable[Document]]],
    origin: dict[str, Any],
    label_names: Sequence[str],
    has_groups: bool = False,
) -> OpenSource:
    """A source of images; without groups of the user, what stands for them is the image again."""
    parts = {split: partial(ready_parts, make) for split, make in splits.items()}
    survey = ImageSurvey(label_names)
    return OpenSource(parts, origin, keeps_groups=has_groups, look=_LOOK, survey=survey)
