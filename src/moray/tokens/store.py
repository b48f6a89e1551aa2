"""The packed tokens of a split on disk, mapped into memory.

A split is three files of little-endian numbers:

- `{split}.tokens`: token ids, shape (rows, block_size), uint16 or uint32;
- `{split}.mask`: whether a token is trained, shape (rows, block_size), uint8;
- `{split}.segments`: where documents lie, shape (segments, 4), int64: first token's place in
  the flattened rows, number of tokens, the document's number, UTF-8 bytes behind its trained
  tokens. Sorted by place. Tokens in no segment are padding at the end of a row.
"""

from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from moray.provenance.manifest import read_manifest
from moray.tokens.encode import Piece
from moray.tokens.packing import pack

_PIECES_AT_ONCE = 8192


class Segment(IntEnum):
    """Columns of the segments array."""

    START = 0
    LENGTH = 1
    DOCUMENT = 2
    BYTES = 3


class Split:
    """A split of a store, read-only and mapped: opening it costs no memory.

    Attributes:
        tokens: shape (rows, block_size).
        mask: shape (rows, block_size).
        segments: shape (segments, 4), see the module.
    """

    def __init__(self, folder: Path, split: str) -> None:
        manifest = read_manifest(folder)
        block_size, dtype = manifest["block_size"], np.dtype(manifest["dtype"])
        rows = manifest["splits"][split]["rows"]
        self.tokens = _map(folder / f"{split}.tokens", dtype, (rows, block_size))
        self.mask = _map(folder / f"{split}.mask", np.dtype("u1"), (rows, block_size))
        segments = manifest["splits"][split]["segments"]
        self.segments = _map(folder / f"{split}.segments", np.dtype("<i8"), (segments, 4))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def block_size(self) -> int:
        """Tokens in a row."""
        return int(self.tokens.shape[1])

    def segments_of(self, row: int) -> NDArray[np.int64]:
        """The segments of a row, shape (segments, 4), places counted from the row's start."""
        begin = row * self.block_size
        starts = self.segments[:, Segment.START]
        first, last = np.searchsorted(starts, [begin, begin + self.block_size])
        segments = np.array(self.segments[first:last])
        segments[:, Segment.START] -= begin
        return segments


class SplitWriter:
    """Packs pieces into rows and appends them, holding a window of pieces at a time."""

    def __init__(self, folder: Path, split: str, block_size: int, vocab_size: int) -> None:
        self.block_size = block_size
        self.dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        self._waiting: list[Piece] = []
        self._rows = self._segments = self._trained = self._used = 0
        self._files: dict[str, BinaryIO] = {
            kind: (folder / f"{split}.{kind}").open("wb") for kind in ("tokens", "mask", "segments")
        }

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

    def add(self, pieces: Iterable[Piece]) -> None:
        """Take pieces in; what fills a window is packed and written."""
        for piece in pieces:
            self._waiting.append(piece)
            if len(self._waiting) == _PIECES_AT_ONCE:
                self._flush()

    def finish(self) -> dict[str, Any]:
        """Write what waits; returns counts of rows, segments, tokens and trained tokens."""
        self._flush()
        return {
            "rows": self._rows,
            "segments": self._segments,
            "tokens": self._used,
            "trained_tokens": self._trained,
        }

    def _flush(self) -> None:
        rows = pack([len(piece.tokens) for piece in self._waiting], self.block_size)
        tokens = np.zeros((len(rows), self.block_size), self.dtype)
        mask = np.zeros((len(rows), self.block_size), np.uint8)
        segments = []
        for index, members in enumerate(rows):
            place = 0
            for piece in (self._waiting[member] for member in members):
                end = place + len(piece.tokens)
                tokens[index, place:end] = piece.tokens
                mask[index, place:end] = piece.mask
                start = (self._rows + index) * self.block_size + place
                segments.append((start, len(piece.tokens), piece.document, piece.bytes))
                place = end
            self._used += place
        self._files["tokens"].write(tokens.tobytes())
        self._files["mask"].write(mask.tobytes())
        self._files["segments"].write(np.array(segments, "<i8").tobytes())
        self._rows += len(rows)
        self._segments += len(segments)
        self._trained += int(mask.sum())
        self._waiting.clear()


def _map(path: Path, dtype: np.dtype[Any], shape: tuple[int, int]) -> NDArray[Any]:
    if shape[0] == 0:
        return np.zeros(shape, dtype)  # an empty file can't be mapped
    return np.memmap(path, dtype, "r", shape=shape)
