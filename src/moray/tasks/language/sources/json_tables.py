"""Faults of a JSON file that is one value with all rows in it, and how to unpack it."""

import json
import re
import shlex
from collections.abc import Iterator, Set
from pathlib import PurePath
from typing import Any

from moray.corpus.dataset import RowError

_EXPECTED = "expected a list of rows"
# The ending of a file with a row on each line, which may be compressed.
_LINES = re.compile(r"\.(jsonl|ndjson)(?=(\.\w+)?$)", re.IGNORECASE)
# Keys of a message in a conversation, which is a row's own.
_OF_MESSAGES = {"content", "from", "role", "value"}


def only_value(lines: Iterator[bytes]) -> Any:
    """The value that a file consists of; None if it has a row per line, or isn't JSON."""
    first, second = next(lines, b""), next(filter(bytes.strip, lines), b"")
    # There may be many lines.
    if second and any(isinstance(_parse(line), dict) for line in (first, second)):
        return None
    return _parse(b"".join((first, second, *lines)))


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def misplaced_rows(value: Any, file: str, columns: Set[str], nested: Set[str]) -> RowError | None:
    """The fault of a value that a file consists of, if it has rows in it, or instead of them.

    Args:
        file: by which the user knows it; its address, for one of the web.
        columns: those of a row.
        nested: those of them whose values can be lists.
    """
    if isinstance(value, list):
        name = _LINES.sub(".json", PurePath(file).name)
        return RowError(
            "got a list of rows, expected a row on each line", f"rename the file to {name}"
        )
    if not isinstance(value, dict) or not value:
        return None
    lists = [key for key, rows in value.items() if _are_rows(rows)]
    if lists and not columns & value.keys():
        problem = f"got an object with rows in {', '.join(lists)}, {_EXPECTED}"
        return RowError(problem, _lists_command(lists, file))
    if nested & value.keys():
        return None
    if all(isinstance(row, dict) and row for row in value.values()):
        if not all(key.isdigit() for row in value.values() for key in row):
            return RowError(
                f"got an object of rows, {_EXPECTED}", _unpack_command(file, "list(table.values())")
            )
        # Pandas writes tables so, by column and number of the row.
        return _columns_command(file, "zip(*(column.values() for column in table.values()))")
    sizes = {len(column) if isinstance(column, list) else 0 for column in value.values()}
    if columns & value.keys() and len(sizes) == 1 and 0 not in sizes:
        return _columns_command(file, "zip(*table.values())")
    return None


def _are_rows(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, dict) and not row.keys() & _OF_MESSAGES for row in value)
    )


def _columns_command(file: str, rows: str) -> RowError:
    return RowError(
        f"got an object of columns, {_EXPECTED}",
        _unpack_command(file, f"[dict(zip(table, row)) for row in {rows}]"),
    )


def _lists_command(keys: list[str], file: str) -> str:
    if len(keys) == 1:
        return _unpack_command(file, f"table[{keys[0]!r}]")
    targets = {key: _beside(file, key) for key in keys}
    paths = ", ".join(f"{key}: {target}" for key, target in targets.items())
    commands = (f"json.dump(table[{key!r}], open({targets[key]!r}, 'w'))" for key in keys)
    return _command(file, "; ".join(commands), f"path: {{{paths}}}")


def _unpack_command(file: str, rows: str) -> str:
    target = _beside(file, "rows")
    return _command(file, f"json.dump({rows}, open({target!r}, 'w'))", target)


def _beside(file: str, word: str) -> str:
    path = PurePath(file)
    return str(path.with_name(f"{path.name.partition('.')[0]}-{word}.json"))


def _command(file: str, statements: str, then: str) -> str:
    suffix = PurePath(file).suffix.lower()
    if suffix == ".zst" or "://" in file:
        return "write the rows alone into a .json file, as a list"
    library = "gzip" if suffix == ".gz" else "io"
    code = f"import {library}, json; table = json.load({library}.open({file!r})); {statements}"
    return f"run python -c {shlex.quote(code)}, and use {then} instead"
