"""Sources of documents, each a module that is imported by the names in the config.

They are in the folder of a task, which others of its modality share. A source has a function
`opened`, which takes what the one here does, and instead of `folder` an empty folder that lasts as
long as the documents are read. It returns an `Opened`.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from moray.config.schema.datasets import Dataset
from moray.config.tasks import source_module
from moray.corpus.bad_rows import BadRows
from moray.corpus.columns import Columns
from moray.corpus.dataset import Document
from moray.corpus.remarks import Remarks
from moray.corpus.split import Given


class Survey(Protocol):
    """What a task finds out about the documents of a dataset, which pass through it."""

    @property
    def noun(self) -> str:
        """What a document is called."""

    def check(self, path: str) -> None:
        """Check what is known before the first document.

        Raises:
            UserError: with this path, if a dataset can't be made of them.
        """

    def follow(self, rows: Iterable[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
        """Yield the documents, each with its split."""

    def facts(self) -> dict[str, Any]:
        """For `dataset.json`, after the last document."""

    @property
    def summary(self) -> str:
        """What the documents are, after their numbers."""

    def lines(self, dataset: str) -> Iterable[str]:
        """What a user should know of a dataset, a line each: mostly nothing."""


@dataclass(frozen=True)
class Opened:
    """A source whose documents can be read, also repeatedly.

    Attributes:
        given: the documents of each split that it has.
        origin: what says where they are from, such as a version, or files with their digests.
        keeps_groups: whether later stages need the groups; some are as large as the documents.
        survey: finds out about the documents what their task needs; None if it needs nothing.
        bad_rows: what was met when they were read.
        columns: the columns of the user's rows, of which some may not be read.
        remarks: what is said of rows that are valid.
    """

    given: Given
    origin: dict[str, Any]
    keeps_groups: bool = True
    survey: Survey | None = None
    bad_rows: BadRows = field(default_factory=BadRows)
    columns: Columns | None = None
    remarks: Remarks = field(default_factory=Remarks)


@contextmanager
def opened(section: Dataset, files: Mapping[str, list[str]], folder: Path) -> Iterator[Opened]:
    """Open the source of a dataset for the body of the `with` statement.

    Args:
        folder: where to keep downloaded files, which are removed after the body.

    Raises:
        UserError: if it can't be read.
    """
    # By name: the others need not be imported.
    source = import_module(source_module(section.source, section.format))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        yield source.opened(section, files, Path(temporary))
