"""Files on this machine or on a shared file system."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from moray.config.schema.datasets import LocalFiles, Url
from moray.corpus.document import Document
from moray.corpus.formats import Shape
from moray.corpus.readers import documents
from moray.corpus.sources.interface import Opened
from moray.errors import UserError
from moray.provenance.manifest import sha256_file


def opened(section: LocalFiles, files: Mapping[str, list[str]], temporary: Path) -> Opened:
    """Open the files of each split; see `Source`."""
    found = {split: {name: Path(name) for name in names} for split, names in files.items()}
    return opened_files(section, found)


def opened_files(section: LocalFiles | Url, found: Mapping[str, Mapping[str, Path]]) -> Opened:
    """Open files that are known under other names, which are in errors and in the description.

    Args:
        section: the dataset's section of the config.
        found: the files of each split, by name.
    """
    shape = Shape(section.format, section.columns, section.system)
    given = {split: partial(_named, files, shape) for split, files in found.items()}
    every = {name: file for files in found.values() for name, file in files.items()}
    return Opened(given, {"files": {name: sha256_file(file) for name, file in every.items()}})


def _named(files: Mapping[str, Path], shape: Shape) -> Iterator[Document]:
    for name, file in files.items():
        try:
            yield from documents([file], shape)
        except UserError as error:
            path = error.path.replace(str(file), name)
            raise UserError(path, error.problem, error.remedy) from error
