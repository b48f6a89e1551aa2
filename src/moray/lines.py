"""Text files that one process appends whole lines to while others read them."""

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from moray.errors import UserError, first_line


def whole_lines(path: Path) -> list[str]:
    """The lines of a file, without a last line that was cut off by a crash."""
    return [line.decode() for line in _lines_from(path, 0)]


def parse_lines(path: Path, keys: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The lines of a JSONL file as `whole_lines` finds them, parsed.

    Args:
        keys: keys that each line has.

    Raises:
        UserError: at the first line that is no JSON object.
    """
    for number, line in enumerate(_lines_from(path, 0), 1):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _damage(path, number, f"isn't JSON ({first_line(error)})") from error
        if not isinstance(content, dict):
            raise _damage(path, number, "isn't a mapping")
        if lacking := sorted({*keys} - content.keys()):
            raise _damage(path, number, f"has no {', '.join(lacking)}")
        yield content


def _damage(path: Path, number: int, problem: str) -> UserError:
    return UserError(
        f"{path}, line {number}", f"damaged: {problem}", "delete the file and rerun to create it"
    )


def _lines_from(path: Path, start: int) -> list[bytes]:
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        return [line for line in file.readlines() if line.endswith(b"\n")]
    return []


class Follower:
    """Finds the lines that have come to a file since the last look."""

    def __init__(self, path: Path) -> None:
        """Follow a file from its beginning; it may not be there yet, and no two lines are equal."""
        self._path = path
        self._lines: list[bytes] = []
        self._size = 0

    def look(self) -> tuple[list[str], bool]:
        """The lines after those seen before, and whether any of those seen are gone or changed.

        If some are, the lines begin after the last one that is as it was.
        """
        before, last = len(self._lines), self._lines[-1:]
        lines = _lines_from(self._path, self._size - sum(map(len, last)))
        # If the last is where it was, so are the others: a long history isn't read again.
        if lines[: len(last)] == last:
            new = lines[len(last) :]
        else:
            lines = _lines_from(self._path, 0)
            both = zip(self._lines, lines, strict=False)
            del self._lines[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both)) :]
            self._size = sum(map(len, self._lines))
            new = lines[len(self._lines) :]
        rewritten = len(self._lines) < before
        self._lines += new
        self._size += sum(map(len, new))
        return [line.decode() for line in new], rewritten
