"""Sources of documents, each a module that is imported by the names in the config.

They are in the folder of a task, which others of its modality share. A source has a function
`open_source` with the parameters of the one here, except that `folder` is an empty folder, which
is removed after the documents were read. It returns an `OpenSource`.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from moray.config.schema.datasets import Dataset
from moray.config.tasks import FORMATS, TASKS, module_of, source_module
from moray.corpus.bad_rows import BadRows
from moray.corpus.columns import Columns
from moray.corpus.dataset import Document
from moray.corpus.remarks import Remarks
from moray.corpus.split import Splits


class Survey(Protocol):
    """A task's survey of the documents of a dataset, which pass through it."""

    @property
    def noun(self) -> str:
        """The word for a document."""

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
        """The description of the documents that follows their numbers."""

    def lines(self, dataset: str) -> Iterable[str]:
        """Lines that a user should read about a dataset; mostly none."""


@dataclass(frozen=True)
class OpenSource:
    """A source whose documents can be read, also repeatedly.

    Attributes:
        splits: the documents of each split that the source has.
        origin: where they are from, such as a version, or files with their digests.
        keeps_groups: whether later stages need the groups; some are as large as the documents.
        survey: learns what the task needs to know about the documents; None if it needs nothing.
        bad_rows: rows that are no valid documents.
        columns: the columns of the user's rows, some of which may not be read.
        remarks: remarks about valid rows.
    """

    splits: Splits
    origin: dict[str, Any]
    keeps_groups: bool = True
    survey: Survey | None = None
    bad_rows: BadRows = field(default_factory=BadRows)
    columns: Columns | None = None
    remarks: Remarks = field(default_factory=Remarks)


@contextmanager
def open_source(
    section: Dataset, files: Mapping[str, list[str]], folder: Path
) -> Iterator[OpenSource]:
    """Open the source of a dataset for the body of the `with` statement.

    Args:
        folder: where to keep downloaded files, which are removed after the body.

    Raises:
        UserError: if it can't be read.
    """
    # By name, so that the other sources aren't imported.
    source = import_module(source_module(section.source, section.format))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        opened = source.open_source(section, files, Path(temporary))
        if TASKS[task := FORMATS[section.format].task].has_survey:
            opened = replace(opened, survey=module_of(task, "survey").survey_of(section))
        yield opened
