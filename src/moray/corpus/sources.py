"""Sources of documents, each a module that is imported by the names in the config.

They are in the folder of a task, which others of its modality share. A source has a function
`open_source` with the parameters of the one here, except that `folder` is one of its own, which is
removed after the documents were read. It returns an `OpenSource`.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from moray.config.schema.datasets import Dataset
from moray.config.tasks import FORMATS, TASKS, module_of, source_module
from moray.corpus.bad_rows import Policy
from moray.corpus.dataset import Document
from moray.corpus.parts import Splits
from moray.corpus.staging import Look

_DOWNLOADED = "downloaded"


class Survey(Protocol):
    """A task's survey of the documents of a dataset, which are noted one after another."""

    @property
    def noun(self) -> str:
        """The word for a document."""

    def check(self, path: str) -> None:
        """Check what is known before the first document.

        Raises:
            UserError: with this path, if a dataset can't be made of them.
        """

    def note(self, split: str, document: Document) -> None:
        """Note a document of a split.

        Raises:
            UserError: if the task can't use it.
        """

    def facts(self) -> dict[str, Any]:
        """For `dataset.json`, after the last document."""

    @property
    def summary(self) -> str:
        """The description of the documents that follows their numbers."""

    def lines(self, dataset: str) -> Iterable[str]:
        """Lines that a user should read about a dataset; mostly none."""


@dataclass(frozen=True)
class OpenSource:
    """A source whose documents can be read, the same parts of them each time.

    Attributes:
        splits: the parts of each split that the source has.
        origin: where they are from, such as a version, or files with their digests.
        num_bytes: size of what is read; 0 if it isn't known.
        keeps_groups: whether later stages need the groups; some are as large as the documents.
        look: what the survey needs to see of each document; None if it is in the dataset.
        survey: learns what the task needs to know about the documents; None if it needs nothing.
        bad_rows: what is done about rows that are no valid documents.
        max_bad_rows: the largest share of them that is dropped.
        has_columns: whether its rows are the user's, some of whose columns may not be read.
    """

    splits: Splits
    origin: dict[str, Any]
    num_bytes: int = 0
    keeps_groups: bool = True
    look: Look | None = None
    survey: Survey | None = None
    bad_rows: Policy = "refuse"
    max_bad_rows: float = 0.0
    has_columns: bool = False


@contextmanager
def open_source(
    section: Dataset, files: Mapping[str, list[str]], folder: Path
) -> Iterator[OpenSource]:
    """Open the source of a dataset for the body of the `with` statement.

    Args:
        folder: where to keep downloaded files. They are removed after the body, and are still there
            for the next process if this one is killed.

    Raises:
        UserError: if it can't be read.
    """
    # By name, so that the other sources aren't imported.
    source = import_module(source_module(section.source, section.format))
    own_folder = folder / _DOWNLOADED
    opened = source.open_source(section, files, own_folder)
    if TASKS[task := FORMATS[section.format].task].has_survey:
        opened = replace(opened, survey=module_of(task, "survey").survey_of(section))
    yield opened
    shutil.rmtree(own_folder, ignore_errors=True)
