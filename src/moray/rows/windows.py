"""Read the rows of a store window by window, in any process with access to the store."""

from collections.abc import Callable, Sequence

import fsspec
import numpy as np

from moray.rows.store import Record, Rows

WindowReader = Callable[[int], Rows]
"""Returns the rows of a window of the train split."""


def stored_windows(rows_url: str, record: Record, sizes: Sequence[int]) -> WindowReader:
    """Return a function that reads a window's rows, and nothing else, from a store's file.

    Args:
        rows_url: folder or URL of the store's files, or of a copy of them.
        record: type of a row.
        sizes: number of rows in each window.
    """
    ends = np.cumsum(sizes)
    url = f"{rows_url}/train.rows"

    def read(window: int) -> Rows:
        end = int(ends[window]) * record.itemsize
        start = end - int(sizes[window]) * record.itemsize
        files, path = fsspec.core.url_to_fs(url)
        return np.frombuffer(files.cat_file(path, start=start, end=end), record)

    return read
