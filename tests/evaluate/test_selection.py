"""The documents that are scored, and their rows."""

from pathlib import Path

import numpy as np
import pytest
from packed import pieces_of

from moray.evaluate.selection import select_documents
from moray.tasks.language.rows import Segment, is_trained
from moray.tasks.language.store import StoredSplit


@pytest.fixture
def split(store: Path) -> StoredSplit:
    return StoredSplit(store, "test")


def documents_of(segments: np.ndarray) -> set[int]:
    return set(segments[:, Segment.DOCUMENT].tolist())


def test_without_a_limit_all_documents_are_selected(split: StoredSplit) -> None:
    selection = select_documents(split, None)
    assert np.array_equal(selection.segments, split.segments)
    assert selection.rows.tolist() == list(range(len(split)))
    assert np.array_equal(selection.read(split, selection.rows), split.rows)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_documents_are_selected_whole(split: StoredSplit, count: int) -> None:
    selection = select_documents(split, count)
    chosen = documents_of(selection.segments)
    assert len(chosen) == count
    pieces = [piece for row in range(len(split)) for piece in pieces_of(split, row)]
    expected = [piece.document for piece in pieces if piece.document in chosen]
    assert selection.segments[:, Segment.DOCUMENT].tolist() == expected


@pytest.mark.parametrize("count", [1, 3, 7])
def test_nothing_else_is_trained_in_their_rows(split: StoredSplit, count: int) -> None:
    selection = select_documents(split, count)
    chosen = documents_of(selection.segments)
    read = selection.read(split, selection.rows)
    assert read["tokens"].tolist() == split.rows["tokens"][selection.rows].tolist()
    for row, trained in zip(selection.rows.tolist(), is_trained(read), strict=True):
        expected = [
            flag and piece.document in chosen
            for piece in pieces_of(split, row)
            for flag in piece.mask.tolist()
        ]
        assert trained.tolist() == expected + [False] * (split.block_size - len(expected))
        assert any(expected), "each row holds a selected document"


def test_the_first_rows_are_not_preferred(split: StoredSplit) -> None:
    """Packing puts the longest pieces first, so the documents of the first rows are no sample."""
    first = list(dict.fromkeys(split.segments[:, Segment.DOCUMENT].tolist()))[:5]
    assert documents_of(select_documents(split, 5).segments) != set(first)
    assert select_documents(split, 5).rows.max() > 5
