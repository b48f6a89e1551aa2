"""A dataset's section of the config as documents: the one place that knows every source."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from moray.config.schema import (
    Dataset,
    HubDataset,
    LocalFiles,
    PythonStdlib,
    Synthetic,
    Url,
)
from moray.config.splits import expressions_by_split, paths_by_split
from moray.corpus.document import Document
from moray.corpus.formats import Shape
from moray.corpus.readers import documents
from moray.corpus.sources import python_stdlib, synthetic, url
from moray.corpus.split import Documents, Given
from moray.errors import UserError
from moray.provenance.digest import sha256_file

Origin = dict[str, Any]
Source = tuple[Given, Origin]


@contextmanager
def opened(section: Dataset, files: Mapping[str, list[str]], folder: Path) -> Iterator[Source]:
    """The splits that a source gives, readable in the body, and where they are from.

    Args:
        section: the dataset's section.
        files: for local files, those of each split.
        folder: takes what is fetched, for the time of the body.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        given, origin = _source(section, files, Path(temporary))
        yield given, {"source": section.source, **origin}


def _source(section: Dataset, files: Mapping[str, list[str]], temporary: Path) -> Source:
    match section:
        case PythonStdlib():
            return _python_stdlib(section)
        case Synthetic():
            return _synthetic(section)
        case LocalFiles():
            found = {split: {name: Path(name) for name in named} for split, named in files.items()}
            return _files(found, _shape(section))
        case Url():
            return _url(section, temporary)
        case HubDataset():
            return _hub(section)


def _python_stdlib(section: PythonStdlib) -> Source:
    make = python_stdlib.modules if section.format == "text" else python_stdlib.functions
    return {"train": list(make()).__iter__}, {"revision": python_stdlib.revision()}


def _synthetic(section: Synthetic) -> Source:
    size = round(section.size_gb * 1e9)
    make = partial(synthetic.documents, size, section.seed)
    return {"train": make}, {"bytes": size, "seed": section.seed}


def _url(section: Url, temporary: Path) -> Source:
    found: dict[str, dict[str, Path]] = {
        split: url.fetch(urls, temporary / split, section.sha256)
        for split, urls in paths_by_split(section.url).items()
    }
    return _files(found, _shape(section))


def _hub(section: HubDataset) -> Source:
    # `datasets` takes more time to import than all else that a download needs.
    from moray.corpus.sources import hub

    given: dict[str, Documents] = {}
    expressions = expressions_by_split(section.split)
    for split, expression in expressions.items():
        rows = hub.load(
            section.repo_id, section.revision, section.name, section.data_dir, expression
        )
        given[split] = partial(hub.documents, section.repo_id, rows, _shape(section))
    keys = ("repo_id", "revision", "name", "data_dir")
    return given, {key: getattr(section, key) for key in keys} | {"splits_read": expressions}


def _files(found: Mapping[str, Mapping[str, Path]], shape: Shape) -> Source:
    given = {split: partial(_named, files, shape) for split, files in found.items()}
    origins = {name: file for files in found.values() for name, file in files.items()}
    return given, {"files": {name: sha256_file(file) for name, file in origins.items()}}


def _named(files: Mapping[str, Path], shape: Shape) -> Iterator[Document]:
    """The documents of files, and faults under the names that the user knows the files by."""
    for name, file in files.items():
        try:
            yield from documents([file], shape)
        except UserError as error:
            path = error.path.replace(str(file), name)
            raise UserError(path, error.problem, error.remedy) from error


def _shape(section: LocalFiles | Url | HubDataset) -> Shape:
    return Shape(section.format, section.columns, section.system)
