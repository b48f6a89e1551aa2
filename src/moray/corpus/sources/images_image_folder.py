"""A folder with a folder of images for each class."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from moray.config.schema.datasets import ImageFolder
from moray.config.splits import folders_by_split
from moray.corpus.dataset import Document
from moray.corpus.sources import Opened
from moray.errors import UserError
from moray.provenance.manifest import sha256_file


def opened(section: ImageFolder, files: Mapping[str, list[str]], temporary: Path) -> Opened:
    """Open the folder of each split."""
    folders = folders_by_split(section.path)
    names = label_names([*folders.values()])
    given = {str(split): partial(images, folder, names) for split, folder in folders.items()}
    classes = (folder / name for folder in folders.values() for name in names)
    every = sorted(file for inside in classes for file in _visible(inside))
    origin = {"path": section.path, "files": {str(file): sha256_file(file) for file in every}}
    return Opened(given, origin, tuple(names))


def label_names(folders: Sequence[Path]) -> list[str]:
    """The names of the folders of the classes, sorted; of the splits, train comes first.

    Raises:
        UserError: if train has fewer than two, or another split has one that train hasn't.
    """
    train, *others = folders
    names = _classes(train)
    if len(names) < 2:
        got = f"only one class, {names[0]}" if names else "no folder of a class"
        raise UserError(
            str(train), f"got {got}, expected at least two", "make a folder for each class"
        )
    for folder in others:
        if unknown := sorted({*_classes(folder)} - {*names}):
            raise UserError(
                str(folder / unknown[0]),
                f"got a class that {train} doesn't have",
                f"rename the folder, or add {train / unknown[0]}",
            )
    return names


def images(folder: Path, label_names: Sequence[str]) -> Iterator[Document]:
    """Yield each image with its label, mixed: each part of the sequence has images of all classes.

    Raises:
        UserError: if the folder of a class is empty.
    """
    found = []
    for label, name in enumerate(label_names):
        inside = folder / name
        files = _visible(inside) if inside.is_dir() else []
        if inside.is_dir() and not files:
            raise UserError(str(inside), "has no images", "add some or remove the folder")
        found += [(f"{name}/{file.relative_to(inside).as_posix()}", file, label) for file in files]
    for _, file, label in sorted(
        found, key=lambda entry: hashlib.sha256(entry[0].encode()).digest()
    ):
        yield Document(image=file.read_bytes(), label=label, place=str(file))


def _classes(folder: Path) -> list[str]:
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry.name for entry in entries if entry.is_dir())


def _visible(folder: Path) -> list[Path]:
    """All files below a folder, without hidden ones, which are no images."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return [file for file in files if not file.name.startswith(".")]
