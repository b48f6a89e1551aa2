"""Select the documents of a split to score, and the rows that contain them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moray.rows.sample import sample
from moray.rows.store import Rows
from moray.tasks.language.rows import TRAINED, Segment
from moray.tasks.language.store import StoredSplit


@dataclass(frozen=True)
class Selection:
    """Whole documents of a split.

    Attributes:
        rows: numbers of the rows that contain their pieces, ascending, shape (rows,).
        segments: their pieces, columns as in `Segment`, sorted by offset, shape (pieces, 4).
    """

    rows: NDArray[np.int64]
    segments: NDArray[np.int64]

    def read(self, split: StoredSplit, rows: NDArray[np.int64]) -> Rows:
        """Read some of the rows, with only the selected documents marked as trained.

        Args:
            split: the split that the selection was made from.
            rows: numbers of the rows, ascending.
        """
        read = np.array(split.rows[rows])
        starts = self.segments[:, Segment.START]
        ends = starts + self.segments[:, Segment.LENGTH]
        offsets = rows[:, None] * split.block_size + np.arange(split.block_size)
        piece = np.searchsorted(starts, offsets, side="right") - 1
        outside = (piece < 0) | (offsets >= ends[piece])
        read["flags"][outside] &= ~np.uint8(TRAINED)
        return read


def select_documents(split: StoredSplit, max_documents: int | None) -> Selection:
    """Select a random sample of the documents that have trained tokens.

    Args:
        split: split of a token store.
        max_documents: size of the sample; None for all documents.
    """
    documents = np.unique(split.segments[:, Segment.DOCUMENT])
    if max_documents is not None:
        documents = documents[sample(len(documents), max_documents)]
    segments = split.segments[np.isin(split.segments[:, Segment.DOCUMENT], documents)]
    return Selection(np.unique(segments[:, Segment.START] // split.block_size), segments)
