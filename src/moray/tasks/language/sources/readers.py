"""Rows of files of each type, some megabytes at a time, which any process can parse."""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from moray.config import extras
from moray.corpus.class_labels import class_names, with_names
from moray.corpus.dataset import RowError
from moray.corpus.parts import PART_BYTES, in_groups, size_of_texts
from moray.corpus.remarks import Remarks
from moray.errors import UserError
from moray.tasks.language.sources.delimited import DELIMITERS, delimited_rows, is_quoted
from moray.tasks.language.sources.opened import (
    Form,
    decode,
    is_compressed,
    kind_of,
    lines,
    open_file,
)
from moray.tasks.language.sources.tables import Row, Rows, TableRows, check_header


class Unparsed(Protocol):
    """Some rows of a file; can be pickled."""

    def rows(self, remarks: Remarks) -> Rows:
        """Parse them.

        Raises:
            UserError: if they can't be; it names the file and the place in it.
        """


Reading = Iterator[tuple[Unparsed, int]]
"""Some rows after others, and the size of what was read of the file so far."""

# Larger text files are split into several documents, to limit memory.
_TEXT_BYTES = 4 * 2**20

# Of a table; a fault of the encoding is reported for so many.
_ROWS_AT_ONCE = 1000

_USUAL = Form()


def read(file: Path, form: Form = _USUAL) -> Reading:
    """Read a file.

    Raises:
        UserError: if its type isn't known, or it isn't of its type.
    """
    kind = kind_of(file)
    if kind in extras.TABLES and not is_compressed(file):
        return _spreadsheet(file)
    if kind not in _READERS or (kind == ".parquet" and is_compressed(file)):
        raise UserError(
            str(file),
            f"got the extension {file.suffix!r}, expected {', '.join(_READERS)} (all but the last "
            "may be followed by .gz or .zst), or .xlsx",
            "rename or convert the file",
        )
    return _READERS[kind](file, form)


@dataclass(frozen=True)
class _Parsed:
    """Rows of a file that had to be parsed to find their ends."""

    places_and_rows: list[tuple[str, Row | RowError]]
    remark: str = ""

    def rows(self, remarks: Remarks) -> Rows:
        if self.remark:
            remarks.add(self.remark, self.remark)
        return iter(self.places_and_rows)


def _parsed(rows: Rows, position: Callable[[], int]) -> Reading:
    return ((_Parsed(group), position()) for group in in_groups(rows, _size_of_row))


def _size_of_row(placed: tuple[str, Row | RowError]) -> int:
    _, row = placed
    return size_of_texts(row) if isinstance(row, dict) else 0


def _text(file: Path, form: Form) -> Reading:
    with open_file(file, form.encoding) as (stream, position):
        offset = 0
        while part := stream.read(_TEXT_BYTES):
            # Up to the end of a line, so that no character is cut.
            part += stream.readline()
            row: Row = {"text": decode(file, part, offset)}
            yield _Parsed([(f"byte {offset}", row)]), position()
            offset += len(part)


@dataclass(frozen=True)
class _JsonLines:
    """Some lines of a file.

    Attributes:
        number: that of the first line.
        offset: number of bytes before it.
    """

    file: Path
    content: bytes
    number: int
    offset: int

    def rows(self, remarks: Remarks) -> Rows:
        content = io.BytesIO(self.content)
        for number, line in enumerate(lines(self.file, content, self.offset), self.number):
            if line.strip():
                yield f"line {number}", _row_of_line(self.file, line.rstrip("\r\n"), number)


def _json_lines(file: Path, form: Form) -> Reading:
    with open_file(file, form.encoding) as (stream, position):
        number, offset = 1, 0
        while content := stream.read(PART_BYTES):
            content += stream.readline()
            yield _JsonLines(file, content, number, offset), position()
            number += content.count(b"\n")
            offset += len(content)


def _json_file(file: Path, form: Form) -> Reading:
    """A list of rows, or one row per line, which is common too."""
    with open_file(file, form.encoding) as (stream, position):
        start = stream.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        if start != b"[":
            yield from _json_lines(file, form)
            return
        rows = _json(file, decode(file, stream.read(), 0), 1)
        numbered = ((f"entry {number}", _mapping(row)) for number, row in enumerate(rows, 1))
        yield from _parsed(numbered, position)


def _delimited(file: Path, form: Form) -> Reading:
    delimiter = form.delimiter or DELIMITERS[kind_of(file)]
    quoted = is_quoted(file, delimiter, form.encoding)
    with open_file(file, form.encoding) as (stream, position):
        yield from _parsed(delimited_rows(file, stream, delimiter, quoted), position)


def _spreadsheet(file: Path) -> Reading:
    rows, sheets = extras.part(extras.TABLES[kind_of(file)], "sheet").first_sheet(file)
    remark = f"of {len(sheets)} sheets, the first is read, {sheets[0]}" if len(sheets) > 1 else ""
    for group in in_groups(_sheet_rows(file, rows), _size_of_row):
        yield _Parsed(group, remark), file.stat().st_size


def _sheet_rows(file: Path, rows: Iterator[tuple[int, list[str]]]) -> Rows:
    number, names = next(rows, (1, []))
    check_header(names, f"{file}, row {number}")
    for number, values in rows:
        if len(values) > len(names):
            yield (
                f"row {number}",
                RowError(
                    f"got a value without a name in column {len(values)}, expected one in the "
                    "first row",
                    "name the column there, or remove the value",
                ),
            )
            continue
        padded = values + [""] * (len(names) - len(values))
        yield f"row {number}", dict(zip(names, padded, strict=True))


@dataclass(frozen=True)
class _Batches:
    """Some rows of a Parquet file.

    Attributes:
        stream: the rows as Arrow's stream, which pickles no more than them.
        number: that of the first row.
    """

    file: Path
    stream: pa.Buffer
    number: int

    def rows(self, remarks: Remarks) -> Rows:
        with pa.ipc.open_stream(self.stream) as batches:
            names = class_names(batches.schema)
            table_rows = TableRows(batches.schema, str(self.file), remarks)
            first = self.number
            for batch in batches:
                try:
                    rows = batch.to_pylist()
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{self.file}, rows {first} to {first + batch.num_rows - 1}",
                        "invalid UTF-8",
                        "convert the text to UTF-8",
                    ) from error
                for number, row in enumerate(rows, first):
                    try:
                        yield f"row {number}", with_names(table_rows.as_json(row), names)
                    except RowError as error:
                        yield f"row {number}", error
                first += batch.num_rows


def _parquet(file: Path, form: Form) -> Reading:
    with pq.ParquetFile(file) as table:
        check_header(table.schema_arrow.names, str(file))
        number, size = 1, file.stat().st_size
        batches = table.iter_batches(batch_size=_ROWS_AT_ONCE)
        for group in in_groups(batches, lambda batch: batch.nbytes, _ROWS_AT_ONCE):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema_arrow) as stream:
                for batch in group:
                    stream.write_batch(batch)
            rows = sum(batch.num_rows for batch in group)
            position = size * (number - 1 + rows) // table.metadata.num_rows
            yield _Batches(file, sink.getvalue(), number), position
            number += rows


_READERS: dict[str, Callable[[Path, Form], Reading]] = {
    ".txt": _text,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_file,
    ".csv": _delimited,
    ".tsv": _delimited,
    ".parquet": _parquet,
}


def _json(file: Path, text: str, line: int) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        if "\n" not in text and getattr(error, "pos", None) == len(text):
            # The line may be the beginning of a value over several lines.
            raise UserError(
                f"{file}, line {line}",
                "got the beginning of a JSON value, expected a whole one",
                "write each row on one line, or all rows as a list in a .json file",
            ) from error
        error_line = line + getattr(error, "lineno", 1) - 1
        raise UserError(
            f"{file}, line {error_line}", f"invalid JSON ({getattr(error, 'msg', error)})", "fix it"
        ) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; Python's own keeps the last of two values."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        name, times = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {name} is there {times} times")
    return mapping


# `json.loads` makes one for each call.
_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _row_of_line(file: Path, line: str, number: int) -> Row | RowError:
    try:
        return _mapping(_json(file, line, number))
    except UserError as error:
        return RowError(error.problem, error.remedy)


def _mapping(row: Any) -> Row | RowError:
    if isinstance(row, dict):
        return row
    return RowError(
        f"got {type(row).__name__}, expected a mapping of column names to values", "fix it"
    )
