"""Runs in a table, as labs keep their samples: a row is a run, a column a key of it."""

import csv
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from moray.config.grid import with_value
from moray.config.inputs import CHECK_PATH
from moray.config.places import moved, run_and_key
from moray.errors import UserError

_KEY = "runs_from"
_NAME = "run"
_DELIMITERS = {".tsv": "\t", ".csv": ","}


@dataclass
class Sheet:
    """The runs of a table.

    Attributes:
        file: the table.
        runs: as `runs` of a config would have them.
        lines: where the table has them, by name.
    """

    file: str = ""
    runs: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def as_written(self, faults: Iterable[UserError]) -> list[UserError]:
        """The faults by the lines of the table, those of a column once."""
        return moved(faults, self._path)

    def _path(self, fault: UserError) -> str:
        found = run_and_key(fault.path, self.lines)
        if found is None:
            return fault.path
        run, key = found
        line = 1 if fault.problem == "unknown key" else self.lines[run]
        return f"{self.file}, line {line}" + (f", {key}" if key else "")


def read_sheet(path: Any) -> Sheet:
    """The runs of a table; its first line has dotted keys, one of them `run`, the name.

    Values are read as YAML; an empty cell is a key that isn't set.

    Raises:
        UserError: if there is no such table, or it has no names or one twice.
    """
    if not isinstance(path, str) or Path(path).suffix not in _DELIMITERS:
        raise UserError(_KEY, f"got {path}, expected a .tsv or .csv file", "name one, or remove it")
    path = os.path.expanduser(path)
    if not Path(path).is_file():
        raise UserError(_KEY, f"there is no file {path}", CHECK_PATH)
    sheet = Sheet(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter=_DELIMITERS[Path(path).suffix], strict=True)
            for row in rows:
                _add(sheet, row, rows.line_num)
    except UnicodeDecodeError as error:
        raise UserError(path, "isn't UTF-8", "save the file as UTF-8") from error
    except csv.Error as error:
        raise UserError(path, f"isn't a table ({error})", "correct it") from error
    return sheet


def _add(sheet: Sheet, row: Mapping[str | None, Any], line: int) -> None:
    place = f"{sheet.file}, line {line}"
    if None in row or None in row.values():
        more = "more" if None in row else "fewer"
        raise UserError(place, f"has {more} values than line 1 has columns", "correct it")
    cells = {key.strip(): text.strip() for key, text in row.items() if key is not None}
    name = cells.pop(_NAME, "")
    if not name:
        raise UserError(place, f"has no {_NAME}", f"name each run in the column {_NAME}")
    if name in sheet.lines:
        raise UserError(place, f"{name} is in line {sheet.lines[name]} too", "rename one of them")
    run: dict[str, Any] = {}
    for key, text in cells.items():
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"{place}, {key}", f"{text} isn't YAML", "correct it") from error
        if value is not None or text:
            run = with_value(run, key, value)
    sheet.runs[name], sheet.lines[name] = run, line
