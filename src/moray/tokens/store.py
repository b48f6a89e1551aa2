"""The packed tokens of a split on disk, mapped into memory.

A split consists of two files of little-endian numbers:

- `{split}.rows`: records of tokens (uint16 or uint32) and flags (uint8), see `rows`;
- `{split}.segments`: the positions of documents, shape (segments, 4), int64, see `rows.Segment`.

Rows are grouped into windows: a window contains the documents of one row group of the dataset.
The manifest lists the number of rows in each window. If the train split is tokenised on the fly,
the store has its documents and the tokenizer instead of its rows.
"""

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from moray.provenance.manifest import read_manifest
from moray.tokens.rows import Packed, Rows, Segment, is_trained, row_type

ROWS_FROM = "train.parquet"
TOKENIZER = "tokenizer"


class StoredSplit:
    """A split of a store, read-only and memory-mapped: opening it takes no memory.

    Attributes:
        rows: shape (rows,), see `rows`.
        segments: shape (segments, 4), see `rows.Segment`.
        windows: number of rows in each window.
    """

    def __init__(self, folder: Path, split: str) -> None:
        manifest = read_manifest(folder)
        self.block_size: int = manifest["block_size"]
        facts = manifest["splits"][split]
        self.windows: list[int] = facts["windows"]
        record = row_type(self.block_size, np.dtype(manifest["dtype"]))
        self.rows: Rows = _map(folder / f"{split}.rows", record, (facts["rows"],))
        shape = (facts["segments"], len(Segment))
        self.segments = _map(folder / f"{split}.segments", np.dtype("<i8"), shape)

    def __len__(self) -> int:
        return len(self.rows)


class SplitWriter:
    """Appends windows to a split and counts their contents."""

    def __init__(self, folder: Path, split: str, block_size: int, keep_rows: bool = True) -> None:
        """Open a split's files.

        Args:
            folder: the store's folder.
            split: the split's name.
            block_size: tokens in a row.
            keep_rows: whether to write rows; if False, they are only counted.
        """
        self.block_size = block_size
        self._files: dict[str, BinaryIO] = {}
        for kind in ("rows", "segments") if keep_rows else ():
            self._files[kind] = (folder / f"{split}.{kind}").open("wb")
        self._windows: list[int] = []
        self._rows = self._segments = self._trained = self._tokens = self._dropped = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()

    def add(self, window: Packed) -> None:
        """Append a window."""
        if self._files:
            segments = window.segments.astype("<i8")
            segments[:, Segment.START] += self._rows * self.block_size
            # Written from the buffers: `tobytes` would copy the window, which can be large.
            self._files["rows"].write(window.rows.view("u1").data)
            self._files["segments"].write(segments.data)
        self._windows.append(len(window.rows))
        self._rows += len(window.rows)
        self._segments += len(window.segments)
        self._tokens += int(window.segments[:, Segment.LENGTH].sum())
        self._trained += int(is_trained(window.rows).sum())
        self._dropped += window.dropped

    def facts(self) -> dict[str, Any]:
        """Counts of what was written."""
        return {
            "rows": self._rows,
            "segments": self._segments,
            "tokens": self._tokens,
            "trained_tokens": self._trained,
            "dropped_documents": self._dropped,
            "windows": self._windows,
        }


def _map(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if shape[0] == 0:
        return np.zeros(shape, dtype)  # an empty file can't be mapped
    return np.memmap(path, dtype, "r", shape=shape)
