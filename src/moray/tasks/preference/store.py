"""Writes the pairs of a split: a split of a token store whose pieces come in pairs."""

from pathlib import Path
from typing import Any

from moray.tasks.language.rows import Packed
from moray.tasks.language.store import SplitWriter
from moray.tasks.preference.rows import PackedPairs, num_pairs


class PairsWriter(SplitWriter):
    """Appends windows of pairs and counts their contents."""

    def __init__(self, folder: Path, split: str, block_size: int) -> None:
        super().__init__(folder, split, block_size)
        self._pairs = self._most_pairs = self._truncated = 0

    def add(self, window: Packed) -> None:
        assert isinstance(window, PackedPairs)
        super().add(window)
        numbers = num_pairs(window.rows)
        self._pairs += int(numbers.sum())
        self._most_pairs = max(self._most_pairs, int(numbers.max(initial=0)))
        self._truncated += window.truncated

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "pairs": self._pairs,
            "most_pairs_in_row": self._most_pairs,
            "truncated_pairs": self._truncated,
        }
