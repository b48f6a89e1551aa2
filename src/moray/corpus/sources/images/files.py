"""Parquet files with a column of images."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from moray.config.schema.datasets import LocalFiles
from moray.corpus.sources.images import table
from moray.corpus.sources.interface import Opened
from moray.provenance.manifest import sha256_file


def opened(section: LocalFiles, files: Mapping[str, list[str]], temporary: Path) -> Opened:
    """Open the files of each split; see `Source`."""
    found = {split: [Path(name) for name in names] for split, names in files.items()}
    every = [path for paths in found.values() for path in paths]
    names = table.label_names(every, section.columns.get("label", "label"))
    given = {
        split: partial(table.images, paths, section.columns, names)
        for split, paths in found.items()
    }
    return Opened(given, {"files": {str(path): sha256_file(path) for path in every}}, tuple(names))
