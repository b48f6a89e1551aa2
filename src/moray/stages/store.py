"""Write a store: a window of rows of each row group of its dataset, made by several cores."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from moray.console import progress
from moray.corpus.dataset import SPLITS, Document, RowGroup, num_bytes, num_groups, read_groups
from moray.rows.journal import Journal, key_of, resumable_folder
from moray.rows.store import RowsWriter
from moray.workers.pool import TOKENIZE, Pool, open_pool

Window = TypeVar("Window")

MakeWindow = Callable[[list[Document], int], Window]
"""Makes a window of the documents of a row group and the number of the first one in its split."""


@dataclass(frozen=True)
class OpenStore:
    """A store that is being written.

    Attributes:
        journal: what an earlier process has written.
        pool: where windows are made.
    """

    folder: Path
    journal: Journal
    pool: Pool

    def windows(
        self, file: Path, make: MakeWindow[Window], writer: RowsWriter, label: str
    ) -> Iterator[tuple[int, Window]]:
        """Yield the windows of a split that the writer doesn't have yet, with their numbers.

        They come in order, a few are in memory at a time, and their progress is shown.

        Args:
            make: can be pickled, with what it returns and raises.
        """
        start = writer.num_resumed
        made = self.pool.map(partial(_of_group, make=make), read_groups(file, start))
        return enumerate(progress(made, label, "window", num_groups(file), start), start)


def _of_group(group: RowGroup, make: MakeWindow[Window]) -> Window:
    return make(group.documents(), group.first_document)


@contextmanager
def open_store(
    dataset: Path,
    model: Path,
    output: Path,
    cfg: dict[str, Any],
    code: str,
    execution: Mapping[str, Any] | None,
) -> Iterator[OpenStore]:
    """The store of a dataset for a model, for the body to fill.

    One of the same rows, model, settings and code that a killed process has begun is continued.

    Args:
        code: the version of what decides on the rows.
        execution: see `layout.store_execution`; None to use this process alone.

    Raises:
        UserError: if the disk is full, or Ray can't be used.
    """
    size = sum(num_bytes(dataset / f"{split}.parquet") for split in SPLITS)
    with (
        resumable_folder(output, key_of(dataset, model, cfg, code)) as journal,
        open_pool(execution, TOKENIZE, size) as pool,
    ):
        yield OpenStore(output, journal, pool)
