"""Open the source of a dataset: the only module that knows all kinds of sources."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from moray.config.schema import (
    HubDataset,
    LocalFiles,
    PythonStdlib,
    Synthetic,
    TextDataset,
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
def opened(section: TextDataset, files: Mapping[str, list[str]], folder: Path) -> Iterator[Source]:
    """Open a source's splits for the body of the `with` statement.

    Args:
        section: the dataset's section of the config.
        files: for local files, the files of each split.
        folder: where to keep downloaded files, which are removed after the body.

    Yields:
        The splits, and a description of the source.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        given, origin = _source(section, files, Path(temporary))
        yield given, {"source": section.source, **origin}


def _source(section: TextDataset, files: Mapping[str, list[str]], temporary: Path) -> Source:
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
    makers = {
        "text": python_stdlib.modules,
        "prompt-completion": python_stdlib.functions,
        "preference": python_stdlib.pairs,
    }
    made = list(makers[section.format]())
    return {"train": made.__iter__}, {"revision": python_stdlib.revision()}


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
    # Importing `datasets` takes longer than all other imports of the download together.
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
    """Yield the documents of files; errors name the files as the user does."""
    for name, file in files.items():
        try:
            yield from documents([file], shape)
        except UserError as error:
            path = error.path.replace(str(file), name)
            raise UserError(path, error.problem, error.remedy) from error


def _shape(section: LocalFiles | Url | HubDataset) -> Shape:
    return Shape(section.format, section.columns, section.system)
