"""The documents of parts of sources."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import datasets

from moray.corpus.dataset import Document
from moray.corpus.findings import Findings
from moray.corpus.parts import Part
from moray.tasks.language.formats import Shape
from moray.tasks.language.sources import files, hub


def documents_in(parts: Iterable[Part], findings: Findings) -> Iterator[Document]:
    return chain.from_iterable(part.documents(findings) for part in parts)


def documents(paths: Mapping[str, Path], shape: Shape) -> Iterator[Document]:
    """Those of files by the names that errors call them; the shape's findings get what is found."""
    return documents_in(files.parts(paths, shape), shape.findings)


def documents_of_hub(place: str, rows: datasets.Dataset, shape: Shape) -> Iterator[Document]:
    return documents_in(hub.parts(place, rows, shape), shape.findings)
