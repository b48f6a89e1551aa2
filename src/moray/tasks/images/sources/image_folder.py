"""A folder with a folder of images for each class."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import filterfalse
from pathlib import Path

from PIL import Image

from moray.config.folders import OF_ARCHIVES, files_below, folder_names
from moray.config.schema.image_datasets import ImageFolder
from moray.config.splits import Split, folders_by_split, split_of
from moray.console import say
from moray.corpus.class_labels import similar_names
from moray.corpus.dataset import Document
from moray.corpus.sources import OpenSource
from moray.errors import UserError
from moray.provenance.manifest import sha256_file
from moray.tasks.images.sources import open_images


def open_source(
    section: ImageFolder, files: Mapping[str, list[str]], temporary: Path
) -> OpenSource:
    """Open the folder of each split; say which files in it are no images."""
    folders = folders_by_split(section.path)
    names = label_names([*folders.values()])
    splits = {str(split): partial(images, folder, names) for split, folder in folders.items()}
    inside = (folder / name for folder in folders.values() for name in names)
    every = [Path(file.path) for one in inside if one.is_dir() for file in files_below(one)]
    read = sorted(file for file in every if _may_be_image(file))
    _say_left_out(section.path, folders.values(), [*filterfalse(_may_be_image, every)])
    origin = {"path": section.path, "files": {str(file): sha256_file(file) for file in read}}
    return open_images(splits, origin, names)


def _say_left_out(path: str, folders: Collection[Path], files: Sequence[Path]) -> None:
    """Say what is not read: other folders beside those of splits, and files that are no images."""
    beside = {Path(path, name) for name in folder_names(Path(path))} - {*folders}
    if Path(path) not in folders and beside:
        names = ", ".join(str(folder) for folder in sorted(beside))
        say(f"{path}: not read, because no split has this name: {names}")
    if Path(path, OF_ARCHIVES).is_dir():
        say(f"{path}: left out {OF_ARCHIVES}, which macOS adds to archives")
    if files:
        endings = ", ".join(sorted({file.suffix for file in files}))
        what = f"{len(files):,} file{'s' * (len(files) > 1)} whose ending is not an image's"
        say(f"{path}: left out {what} ({endings}), the first is {files[0]}")


def label_names(folders: Sequence[Path]) -> list[str]:
    """The names of the folders of the classes, sorted; of the splits, train comes first.

    Raises:
        UserError: if train has fewer than two, or another split has one that train hasn't.
    """
    train, *others = folders
    names = folder_names(train)
    if len(names) < 2:
        got = f"only one class, {names[0]}" if names else "no folder of a class"
        raise UserError(
            str(train), f"got {got}, expected at least two", "make a folder for each class"
        )
    for folder in others:
        if not folder_names(folder):
            raise UserError(
                str(folder),
                "got no folders of classes, expected those of train",
                "put its images into folders of their classes, or move it elsewhere",
            )
        if unknown := sorted({*folder_names(folder)} - {*names}):
            one = unknown[0]
            problem = f"got a class that {train} doesn't have"
            remedy = f"rename the folder, or add {train / one}"
            if similar := next((name for name in names if similar_names([name, one])), None):
                # A terminal doesn't show some differences.
                problem += f" ({one!a} here, {similar!a} there)"
                remedy = "give both folders the same name"
            raise UserError(str(folder / one), problem, remedy)
    return names


def images(folder: Path, label_names: Sequence[str]) -> Iterator[Document]:
    """Yield each image with its label, mixed: each part of the sequence has images of all classes.

    Raises:
        UserError: if the folder of a class is empty, or has folders of splits.
    """
    entries = []
    for label, name in enumerate(label_names):
        inside = folder / name
        if not inside.is_dir():
            continue
        files = [file for one in files_below(inside) if _may_be_image(file := Path(one.path))]
        _check_unmixed(inside, files)
        if not files:
            raise UserError(str(inside), "has no images", "add some or remove the folder")
        entries += [
            (f"{name}/{file.relative_to(inside).as_posix()}", file, label) for file in files
        ]
    for _, file, label in sorted(
        entries, key=lambda entry: hashlib.sha256(entry[0].encode()).digest()
    ):
        yield Document(image=file.read_bytes(), label=label, place=str(file))


def _check_unmixed(folder: Path, files: Iterable[Path]) -> None:
    """Refuse folders of splits inside the folder of a class, which would be mixed."""
    parts = {part for file in files for part in file.relative_to(folder).parts[:-1]}
    folders: dict[Split, str] = {split: part for part in sorted(parts) if (split := split_of(part))}
    if len(folders) > 1:
        first = " and ".join(folders.values())
        raise UserError(
            str(folder),
            f"has folders named after splits ({first}), whose images would be mixed",
            f"put the classes into the splits: {next(iter(folders.values()))}/{folder.name}",
        )


def _may_be_image(file: Path) -> bool:
    """Whether a file has an ending of images, in any case, or none."""
    return not file.suffix or file.suffix.lower() in _endings()


@cache
def _endings() -> set[str]:
    """The endings of what Pillow reads."""
    formats = Image.registered_extensions()
    return {ending for ending, format in formats.items() if format in Image.OPEN}
