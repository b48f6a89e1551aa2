"""Read the rows of a store window by window, in any process with access to the store."""

from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np

from moray.provenance.manifest import read_manifest
from moray.rows.store import Rows, record_of

WindowReader = Callable[[int], Rows]
"""Returns the rows of a window of the train split."""


def stored_windows(store: Path, rows_url: str) -> WindowReader:
    """Return a function that reads a window's rows, and nothing else, from a store's file.

    Args:
        store: the store.
        rows_url: folder or URL of the store's files, or of a copy of them.
    """
    manifest = read_manifest(store)
    record, sizes = record_of(manifest), manifest["splits"]["train"]["windows"]
    ends = np.cumsum(sizes)
    url = f"{rows_url}/train.rows"

    def read(window: int) -> Rows:
        end = int(ends[window]) * record.itemsize
        start = end - int(sizes[window]) * record.itemsize
        files, path = fsspec.core.url_to_fs(url)
        return np.frombuffer(files.cat_file(path, start=start, end=end), record)

    return read
