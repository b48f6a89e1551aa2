"""The packed tokens of a split on disk: its rows, and the positions of documents in them.

Rows are records of tokens (uint16 or uint32) and flags (uint8), see `rows`. The file
`{split}.segments` holds the positions of documents, shape (segments, 4), int64, see `rows.Segment`.
If the train split is tokenised on the fly, the store has its documents and the tokenizer instead of
its rows.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from moray.provenance.manifest import read_manifest
from moray.rows.store import RowsWriter, StoredRows, map_file
from moray.tasks.language.rows import Packed, Segment, is_trained

ROWS_FROM = "train.parquet"
TOKENIZER = "tokenizer"


class StoredSplit(StoredRows):
    """A split of a token store, read-only and memory-mapped.

    Attributes:
        block_size: tokens in a row.
        segments: shape (segments, 4), see `rows.Segment`.
    """

    def __init__(self, folder: Path, split: str) -> None:
        super().__init__(folder, split)
        manifest = read_manifest(folder)
        self.block_size: int = manifest["block_size"]
        shape = (manifest["splits"][split]["segments"], len(Segment))
        self.segments = map_file(folder / f"{split}.segments", np.dtype("<i8"), shape)


class SplitWriter:
    """Appends windows to a split and counts their contents.

    Attributes:
        folder: the store's folder.
        block_size: tokens in a row.
    """

    def __init__(self, folder: Path, split: str, block_size: int, keep_rows: bool = True) -> None:
        """Open a split's files.

        Args:
            folder: the store's folder.
            split: the split's name.
            block_size: tokens in a row.
            keep_rows: whether to write rows; if False, they are only counted.
        """
        self.folder = folder
        self.block_size = block_size
        with ExitStack() as files:
            self._rows = files.enter_context(RowsWriter(folder, split, keep_rows))
            self._file = (
                files.enter_context((folder / f"{split}.segments").open("wb"))
                if keep_rows
                else None
            )
            self._files = files.pop_all()
        self._segments = self._tokens = self._dropped = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close()

    def add(self, window: Packed) -> None:
        """Append a window."""
        if self._file:
            segments = window.segments.astype("<i8")
            segments[:, Segment.START] += self._rows.num_rows * self.block_size
            self._file.write(segments.data)
        self._rows.add(window.rows, weight=int(is_trained(window.rows).sum()))
        self._segments += len(window.segments)
        self._tokens += int(window.segments[:, Segment.LENGTH].sum())
        self._dropped += window.dropped

    def facts(self) -> dict[str, Any]:
        """Counts of what was written; the weight is the number of trained tokens."""
        return {
            **self._rows.facts(),
            "segments": self._segments,
            "tokens": self._tokens,
            "dropped_documents": self._dropped,
        }
