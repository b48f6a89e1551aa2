"""Text files that one process appends whole lines to while others read them."""

from itertools import takewhile
from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """The lines of a file, without a last line that was cut off by a crash."""
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Follower:
    """Finds the lines that have come to a file since the last look."""

    def __init__(self, path: Path) -> None:
        """Follow a file from its beginning; it may not be there yet."""
        self._path = path
        self._seen: list[str] = []

    def look(self) -> tuple[list[str], bool]:
        """The lines after those seen before, and whether any of those seen are gone or changed.

        If some are, the lines begin after the last one that is as it was.
        """
        lines = whole_lines(self._path)
        both = zip(self._seen, lines, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
        rewritten = kept < len(self._seen)
        self._seen = lines
        return lines[kept:], rewritten
