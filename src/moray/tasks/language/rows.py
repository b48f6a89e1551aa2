"""Rows: pieces of documents packed together, in the format that is stored on disk.

A row is a record of `block_size` tokens (uint16 or uint32) and `block_size` flags (uint8), so that
one read fetches both. The flags mark the trained tokens and the first token of each piece. The rest
of a row is padding, whose first token is marked too in packed rows. The file `{split}.segments`
holds the positions of pieces, shape (segments, 4), int64, see `Segment`, and `test.groups` which
documents belong together, shape (documents,), int64. If the train split is
tokenised on the fly, the store has its documents and the tokenizer instead of its rows.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.corpus.dataset import Document
from moray.provenance.manifest import read_manifest
from moray.rows.store import Record, Rows, StoredRows, groups_of, map_file
from moray.tasks.language.alterations import Alterations
from moray.tasks.language.encode import Encoder
from moray.tasks.language.pieces import ROLES, Piece

TRAINED = 1
FIRST = 2

ROWS_FROM = "train.parquet"
TOKENIZER = "tokenizer"


class Segment(IntEnum):
    """Columns of a segments array: a piece's offset in the flattened rows, its number of tokens,
    the number of its document, and the UTF-8 bytes that its trained tokens cover.
    """

    START = 0
    LENGTH = 1
    DOCUMENT = 2
    BYTES = 3


@dataclass(frozen=True)
class PackedRows:
    """Pieces packed into rows.

    Attributes:
        rows: shape (rows,).
        segments: shape (pieces, 4), columns as in `Segment`; sorted by offset.
        cut: number of documents, or of pairs, that were too long for a row, and were cut.
        special: the special tokens that documents have in their own text, and how many have each.
        unknown: number of tokens that stand for characters unknown to the tokenizer, and of the
            documents that have some.
        roles: number of tokens of each of `ROLES`: not trained, and trained; shape (roles, 2).
        alterations: what the chat template does to answers besides rendering them.
    """

    rows: Rows
    segments: NDArray[np.int64]
    dropped: int = 0
    cut: int = 0
    special: Counter[str] = field(default_factory=Counter)
    unknown: tuple[int, int] = (0, 0)
    roles: NDArray[np.int64] = field(default_factory=lambda: np.zeros((len(ROLES), 2), np.int64))
    alterations: Alterations = field(default_factory=Counter)


class StoredSplit(StoredRows):
    """A split of a token store, read-only and memory-mapped; segments as in `Segment`."""

    def __init__(self, folder: Path, split: str) -> None:
        super().__init__(folder, split)
        manifest = read_manifest(folder)
        self.block_size: int = manifest["block_size"]
        shape = (manifest["splits"][split]["segments"], len(Segment))
        self.segments = map_file(folder / f"{split}.segments", np.dtype("<i8"), shape)
        self._folder, self._split = folder, split

    def groups(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first document of the group of each document; itself, but for the test split."""
        if self._split != "test":
            return documents
        return groups_of(self._folder, self._split, documents)


def row_type(block_size: int, token_type: np.dtype[Any]) -> Record:
    """The NumPy type of a row, with the fields `tokens` and `flags`."""
    return np.dtype([("tokens", token_type, (block_size,)), ("flags", "u1", (block_size,))])


def is_trained(rows: Rows) -> NDArray[np.bool_]:
    """Whether each token is trained, shape (rows, block_size)."""
    return (rows["flags"] & TRAINED).astype(np.bool_)


def num_trained(rows: Rows) -> int:
    """Number of trained tokens in rows."""
    return int(is_trained(rows).sum())


def encode_window(
    documents: list[Document],
    first_document: int,
    encoder: Encoder,
    packing: bool,
    count_bytes: bool,
) -> PackedRows:
    """Tokenise and pack a window: the documents of one row group of the dataset.

    Raises:
        RefusedRowError: if the chat template can't render one.
    """
    pieces, dropped, cut = encoder.encode(documents, first_document, count_bytes)
    packed = pack_rows(pieces, encoder.block_size, encoder.dtype, packing)
    packed = with_counts(packed, pieces, documents, first_document, encoder)
    return replace(packed, dropped=dropped, cut=cut)


def with_counts(
    packed: PackedRows,
    pieces: Sequence[Piece],
    documents: Sequence[Document],
    first_document: int,
    encoder: Encoder,
) -> PackedRows:
    """A window with what its pieces are made of: special tokens, roles and alterations."""
    roles = np.concatenate([np.empty(0, np.uint8), *(piece.roles for piece in pieces)])
    trained = np.concatenate([np.empty(0, np.bool_), *(piece.mask for piece in pieces)])
    counts = np.bincount(roles * np.uint8(2) + trained, minlength=2 * len(ROLES))
    alterations = Alterations()
    for piece in pieces:
        alterations.update(piece.alterations)
    return replace(
        packed,
        special=encoder.special_in_text(pieces, documents, first_document),
        unknown=encoder.num_unknown(pieces),
        roles=counts.reshape(-1, 2),
        alterations=alterations,
    )


def pack_rows(
    pieces: list[Piece], block_size: int, token_type: np.dtype[Any], packing: bool = True
) -> PackedRows:
    """Put pieces into rows: packed by best fit, or one row for each piece."""
    return pack_groups([(piece,) for piece in pieces], block_size, token_type, packing)


def pack_groups(
    groups: Sequence[Sequence[Piece]],
    block_size: int,
    token_type: np.dtype[Any],
    packing: bool,
    starts: Sequence[int] = (),
) -> PackedRows:
    """Put groups of pieces into rows: packed by best fit, or one row for each group.

    Pieces lie side by side, or begin at the columns that `starts` has for those of a row.
    """
    lengths = [sum(len(piece.tokens) for piece in group) for group in groups]
    packed = pack(lengths, block_size) if packing else [[number] for number in range(len(groups))]
    rows = np.zeros(len(packed), row_type(block_size, token_type))
    tokens, flags = rows["tokens"], rows["flags"]
    segments: list[tuple[int, ...]] = []
    for row, numbers in enumerate(packed):
        end = 0
        for place, piece in enumerate(piece for number in numbers for piece in groups[number]):
            column = starts[place] if starts else end
            end = column + len(piece.tokens)
            tokens[row, column:end] = piece.tokens
            flags[row, column:end] = piece.mask
            flags[row, column] |= FIRST
            start = row * block_size + column
            segments.append((start, len(piece.tokens), piece.document, piece.bytes))
        # Without packing, positions continue through the padding, as the model's defaults would.
        if packing and end < block_size:
            flags[row, end] = FIRST
    return PackedRows(rows, np.array(segments, np.int64).reshape(len(segments), len(Segment)))


def pack(lengths: Sequence[int], block_size: int) -> list[list[int]]:
    """The indices of the pieces in each row, by best-fit decreasing bin packing.

    Longest first, into the fullest row that has room; no piece is longer than `block_size`. Source:
    Johnson, "Near-optimal bin packing algorithms", 1973 (at most 11/9 of the optimum).
    """
    rows: list[list[int]] = []
    rows_with: dict[int, list[int]] = {}  # free space -> rows
    spaces: list[int] = []  # the keys of rows_with, ascending
    for piece in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[piece]
        position = bisect_left(spaces, length)
        if position == len(spaces):
            row, space = len(rows), block_size
            rows.append([])
        else:
            space = spaces[position]
            row = rows_with[space].pop()
            if not rows_with[space]:
                del rows_with[space]
                spaces.pop(position)
        rows[row].append(piece)
        left = space - length
        if left not in rows_with:
            rows_with[left] = []
            insort(spaces, left)
        rows_with[left].append(row)
    return rows
