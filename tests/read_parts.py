"""The documents of parts of sources."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import datasets

from moray.corpus.dataset import Document
from moray.corpus.findings import Findings
from moray.corpus.loaded_rows import LoadedRows
from moray.corpus.parts import Part
from moray.tasks.language.formats import Shape
from moray.tasks.language.sources import files, hub


def documents_in(parts: Iterable[Part], findings: Findings) -> Iterator[Document]:
    return chain.from_iterable(part.documents(findings) for part in parts)


def documents(paths: Mapping[str, Path], shape: Shape) -> Iterator[Document]:
    """Those of files by the names that errors call them; the shape's findings get what is found."""
    return documents_in(files.parts(paths, shape), shape.findings)


def documents_of_hub(
    place: str, rows: datasets.Dataset | LoadedRows, shape: Shape
) -> Iterator[Document]:
    loaded = rows if isinstance(rows, LoadedRows) else loaded_rows(rows)
    return documents_in(hub.parts(place, loaded, shape), shape.findings)


def loaded_rows(rows: datasets.Dataset) -> LoadedRows:
    """Rows in the Hub's place."""
    tables = partial(rows.with_format("arrow").iter, 1000)
    return LoadedRows(tables, rows.features, len(rows), rows.data.nbytes)
