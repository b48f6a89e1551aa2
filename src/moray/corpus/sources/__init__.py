"""Sources of documents, each a module that is imported by the names in the config.

It has a function `opened`, which takes what the one here does, and instead of `folder` an empty
folder that lasts as long as the documents are read. It returns an `Opened`.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from moray.config.formats import source_module
from moray.config.schema.datasets import Dataset
from moray.corpus.bad_rows import BadRows
from moray.corpus.columns import Columns
from moray.corpus.remarks import Remarks
from moray.corpus.split import Given


@dataclass(frozen=True)
class Opened:
    """A source whose documents can be read, also repeatedly.

    Attributes:
        given: the documents of each split that it has.
        origin: what says where they are from, such as a version, or files with their digests.
        bad_rows: what was met when they were read.
        columns: the columns of the user's rows, of which some may not be read.
        remarks: what is said of rows that are valid.
    """

    given: Given
    origin: dict[str, Any]
    label_names: tuple[str, ...] = ()
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
    name = source_module(section.source, section.format)
    source = import_module(f"moray.corpus.sources.{name}")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        yield source.opened(section, files, Path(temporary))
