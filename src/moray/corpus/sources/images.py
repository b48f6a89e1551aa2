"""Open the source of a dataset of images."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from moray.config.image_files import idx_files
from moray.config.schema import Digits, HubDataset, Idx, ImageDataset, LocalFiles
from moray.config.splits import expressions_by_split, folders_by_split
from moray.corpus.sources import digits, idx, image_folder, image_table
from moray.corpus.split import Documents, Given
from moray.provenance.digest import sha256_file

Origin = dict[str, Any]


def open_images(
    section: ImageDataset, files: Mapping[str, list[str]]
) -> tuple[Given, Origin, list[str]]:
    """The splits of a source, a description of it, and the names of its labels.

    Args:
        section: the dataset's section of the config.
        files: for local files, the files of each split.

    Raises:
        UserError: if it doesn't have two classes, or its files aren't of their format.
    """
    match section:
        case Digits():
            origin = {"revision": digits.revision()}
            return {"train": digits.images}, origin, digits.LABEL_NAMES
        case Idx():
            return _idx(section)
        case LocalFiles():
            return _tables(section, files)
        case HubDataset():
            return _hub(section)
        case _:
            folders = folders_by_split(section.path)
            names = image_folder.label_names([*folders.values()])
            given: dict[str, Documents] = {
                split: partial(image_folder.images, folder, names)
                for split, folder in folders.items()
            }
            return given, {"path": section.path}, names


def _tables(section: LocalFiles, files: Mapping[str, list[str]]) -> tuple[Given, Origin, list[str]]:
    found = {split: [Path(name) for name in names] for split, names in files.items()}
    every = [path for paths in found.values() for path in paths]
    names = image_table.label_names(every, section.columns.get("label", "label"))
    given: dict[str, Documents] = {
        split: partial(image_table.images, paths, section.columns, names)
        for split, paths in found.items()
    }
    return given, {"files": {str(path): sha256_file(path) for path in every}}, names


def _hub(section: HubDataset) -> tuple[Given, Origin, list[str]]:
    # Importing `datasets` takes longer than all other imports of the download together.
    from moray.corpus.sources import hub_images

    expressions = {str(split): one for split, one in expressions_by_split(section.split).items()}
    given, names = hub_images.load(
        section.repo_id,
        section.revision,
        section.name,
        section.data_dir,
        expressions,
        section.columns,
    )
    keys = ("repo_id", "revision", "name", "data_dir")
    origin = {key: getattr(section, key) for key in keys} | {"splits_read": expressions}
    return given, origin, names


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
