"""Tables as text, whose values are separated by a character: CSV and TSV."""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from moray.corpus.dataset import RowError
from moray.errors import UserError
from moray.tasks.language.sources.opened import kind_of, lines, open_file
from moray.tasks.language.sources.tables import Rows, check_header

# What separates values, by the ending of files, and what else does in files of these endings.
DELIMITERS = {".csv": ",", ".tsv": "\t"}
_OTHERS = {".csv": ";\t|", ".tsv": ",;|"}

# A value of CSV in quotes, in which quotes are doubled.
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def other_delimiter(file: Path, encoding: str, named: Collection[str]) -> str | None:
    """What separates values if a file's header says that it isn't what the file's ending says.

    That is so if the header is a single name with another separator in it.

    Args:
        named: columns that the config names.
    """
    kind = kind_of(file)
    if kind not in DELIMITERS:
        return None
    try:
        with open_file(file, encoding) as (stream, _):
            header = next(csv.reader(lines(file, stream), delimiter=DELIMITERS[kind]), [])
    except (OSError, UserError, csv.Error):
        # Reading the rows has an error for it.
        return None
    if len(header) != 1 or header[0] in named:
        return None
    mark = max(_OTHERS[kind], key=header[0].count)
    return mark if mark in header[0] else None


def delimited_rows(file: Path, stream: io.BufferedReader, delimiter: str, quoted: bool) -> Rows:
    """The rows of CSV, or of TSV, whose values may not be in quotes.

    Raises:
        UserError: if two columns have one name, or a line is no CSV.
    """
    csv.field_size_limit(sys.maxsize)
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.DictReader(lines(file, stream), delimiter=delimiter, strict=True, quoting=quoting)
    try:
        names = reader.fieldnames or []
        check_header(names, f"{file}, line {reader.line_num}")
        advice = f"put values that contain {delimiter!r} in quotes, and leave none out"
        marks = _OTHERS.get(kind_of(file), "")
        if mark := next((one for one in marks if any(one in name for name in names)), None):
            advice += f", or set delimiter: {json.dumps(mark)}"
        for row in reader:
            place = f"line {reader.line_num}"
            if None in row or None in row.values():
                yield (
                    place,
                    RowError(
                        f"got {'more' if None in row else 'fewer'} values than the header, "
                        f"which has {len(names)}",
                        advice if quoted else "leave none out, and write no tabs in values",
                    ),
                )
            else:
                yield place, row
    except csv.Error as error:
        # The reader counts whole rows, so an unclosed quote is reported where its row begins.
        raise UserError(
            f"{file}, line {reader.line_num + 1}", f"invalid CSV ({error})", "fix the line"
        ) from error


def is_quoted(file: Path, delimiter: str, encoding: str = "utf-8") -> bool:
    """Whether quotes surround values, as they do unless tabs separate them; see `_has_quotes`."""
    return delimiter != "\t" or _has_quotes(file, encoding)


def _has_quotes(file: Path, encoding: str) -> bool:
    """Whether quotes in a TSV file surround values, as in CSV; else they are part of the text.

    The format knows no quotes, and GLUE's files have plain ones. Spreadsheets and pandas put quotes
    around values with tabs, line breaks or quotes, which they double; others around all values of a
    column. So quotes surround values if the lines of the file can't be rows, but are with quotes;
    or if they can, and each value that begins with a quote was written so.
    """
    with open_file(file, encoding) as (stream, _):
        filled = filter(str.strip, lines(file, stream))
        split = (line.rstrip("\r\n").split("\t") for line in filled)
        header = next(split, [])
        rows, rows_are_lines, well_formed = 0, True, True
        # For each column, values in quotes, and those that would need none.
        quoted, needless = Counter[int](), Counter[int]()
        for values in split:
            rows += 1
            rows_are_lines &= len(values) == len(header)
            for column, value in enumerate(values):
                if value.startswith('"'):
                    well_formed &= bool(_QUOTED.fullmatch(value))
                    quoted[column] += 1
                    needless[column] += '""' not in value[1:-1]
    if not quoted or (rows_are_lines and well_formed):
        all_quoted = any(name.startswith('"') for name in header)
        return all(all_quoted or quoted[one] == rows for one in needless if needless[one])
    return _is_whole_with_quotes(file, encoding, rows_are_lines)


def _is_whole_with_quotes(file: Path, encoding: str, rows_are_lines: bool) -> bool:
    """Whether all rows are valid if quotes surround values.

    If lines can be rows, too, values of several lines must have quotes of their own.
    """
    try:
        with open_file(file, encoding) as (stream, _):
            for _, row in delimited_rows(file, stream, "\t", quoted=True):
                if isinstance(row, RowError):
                    return False
                values = row.values() if rows_are_lines else ()
                if any("\n" in value and '"' not in value for value in values):
                    return False
    except UserError:
        return False
    return True
