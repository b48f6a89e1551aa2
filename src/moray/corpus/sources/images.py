"""Open the source of a dataset of images."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from moray.config.image_files import idx_files
from moray.config.schema import Digits, Idx, ImageDataset
from moray.config.splits import folders_by_split
from moray.corpus.sources import digits, idx, image_folder
from moray.corpus.split import Documents, Given
from moray.provenance.digest import sha256_file

Origin = dict[str, Any]


def open_images(section: ImageDataset) -> tuple[Given, Origin, list[str]]:
    """The splits of a source, a description of it, and the names of its labels.

    Raises:
        UserError: if it doesn't have two classes, or its files aren't of their format.
    """
    match section:
        case Digits():
            origin = {"revision": digits.revision()}
            return {"train": digits.images}, origin, digits.LABEL_NAMES
        case Idx():
            return _idx(section)
        case _:
            folders = folders_by_split(section.path)
            names = image_folder.label_names([*folders.values()])
            given: dict[str, Documents] = {
                split: partial(image_folder.images, folder, names)
                for split, folder in folders.items()
            }
            return given, {"path": section.path}, names


def _idx(section: Idx) -> tuple[Given, Origin, list[str]]:
    files: Mapping[str, dict[str, Path]] = {
        split: {key: Path(path) for key, path in paths.items()}
        for split, paths in idx_files(section).items()
    }
    names = idx.label_names([paths["labels"] for paths in files.values()])
    given: dict[str, Documents] = {
        split: partial(idx.images, **paths) for split, paths in files.items()
    }
    every = [path for paths in files.values() for path in paths.values()]
    return given, {"files": {str(path): sha256_file(path) for path in every}}, names
