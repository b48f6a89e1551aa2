"""Open the source of a dataset, of any kind."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import cast

from moray.config.formats import source_module
from moray.config.schema.datasets import Dataset
from moray.corpus.sources.interface import Opened, Source


@contextmanager
def opened(section: Dataset, files: Mapping[str, list[str]], folder: Path) -> Iterator[Opened]:
    """Open a source for the body of the `with` statement.

    Args:
        section: the dataset's section of the config.
        files: the user's files that it names, by split.
        folder: where to keep downloaded files, which are removed after the body.

    Raises:
        UserError: if it can't be read.
    """
    # By name: the others need not be imported.
    name = source_module(section.source, section.format)
    source = cast(Source, import_module(f"moray.corpus.sources.{name}"))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        yield source.opened(section, files, Path(temporary))
