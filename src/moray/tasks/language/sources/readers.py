"""Rows of files of each type, some megabytes at a time, which any process can parse."""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from moray.corpus.class_labels import class_names, with_names
from moray.corpus.dataset import RowError
from moray.corpus.parts import PART_BYTES, in_groups, size_of_texts
from moray.corpus.remarks import Remarks
from moray.errors import UserError
from moray.tasks.language.sources.tables import TableRows

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row | RowError]]
"""Places in a file, and the rows there, or what is wrong with them."""


class Unparsed(Protocol):
    """Some rows of a file; can be pickled."""

    def rows(self, remarks: Remarks) -> Rows:
        """Parse them.

        Raises:
            UserError: if they can't be; it names the file and the place in it.
        """


Reading = Iterator[tuple[Unparsed, int]]
"""Some rows after others, and the size of what was read of the file so far."""

# The names in pyarrow of the compressions, by the ending of files.
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}

# A value of CSV in quotes, in which quotes are doubled.
_QUOTED = re.compile(r'"(?:[^"]|"")*"')

# Larger text files are split into several documents, to limit memory.
_TEXT_BYTES = 4 * 2**20

# Of a table; a fault of the encoding is reported for so many.
_ROWS_AT_ONCE = 1000


def read(file: Path) -> Reading:
    """Read a file.

    Raises:
        UserError: if its type isn't known, or it isn't of its type.
    """
    kind = kind_of(file)
    if kind not in _READERS or (kind == ".parquet" and is_compressed(file)):
        raise UserError(
            str(file),
            f"got the extension {file.suffix!r}, expected {', '.join(_READERS)} (all but the last "
            "may be followed by .gz or .zst)",
            "rename or convert the file",
        )
    return _READERS[kind](file)


def kind_of(file: Path) -> str:
    """The ending of a file, without that of its compression."""
    return (Path(file.stem).suffix if is_compressed(file) else file.suffix).lower()


def is_compressed(file: Path) -> bool:
    """Whether the ending of a file is that of a compression."""
    return file.suffix.lower() in _COMPRESSED


@contextmanager
def open_file(file: Path) -> Iterator[tuple[io.BufferedReader, Callable[[], int]]]:
    """The content of a file, and a function that tells how many of its bytes were read."""
    with pa.OSFile(str(file)) as raw:
        compression = _COMPRESSED.get(file.suffix.lower())
        content = pa.CompressedInputStream(raw, compression) if compression else raw
        with io.BufferedReader(content) as stream:
            # The stream reads ahead, and can't tell where a compressed file is.
            yield stream, raw.tell if compression else stream.tell


@dataclass(frozen=True)
class _Parsed:
    """Rows of a file that had to be parsed to find their ends."""

    places_and_rows: list[tuple[str, Row | RowError]]

    def rows(self, remarks: Remarks) -> Rows:
        return iter(self.places_and_rows)


def _parsed(rows: Rows, position: Callable[[], int]) -> Reading:
    return ((_Parsed(group), position()) for group in in_groups(rows, _size_of_row))


def _size_of_row(placed: tuple[str, Row | RowError]) -> int:
    _, row = placed
    return size_of_texts(row) if isinstance(row, dict) else 0


def _text(file: Path) -> Reading:
    with open_file(file) as (stream, position):
        offset = 0
        while part := stream.read(_TEXT_BYTES):
            # Up to the end of a line, so that no character is cut.
            part += stream.readline()
            row: Row = {"text": _decode(file, part, offset)}
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
        lines = _lines(self.file, io.BytesIO(self.content), self.offset)
        for number, line in enumerate(lines, self.number):
            if line.strip():
                yield f"line {number}", _row_of_line(self.file, line.rstrip("\r\n"), number)


def _json_lines(file: Path) -> Reading:
    with open_file(file) as (stream, position):
        number, offset = 1, 0
        while content := stream.read(PART_BYTES):
            content += stream.readline()
            yield _JsonLines(file, content, number, offset), position()
            number += content.count(b"\n")
            offset += len(content)


def _json_file(file: Path) -> Reading:
    """A list of rows, or one row per line, which is common too."""
    with open_file(file) as (stream, position):
        start = stream.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        if start != b"[":
            yield from _json_lines(file)
            return
        rows = _json(file, _decode(file, stream.read(), 0), 1)
        numbered = ((f"entry {number}", _mapping(row)) for number, row in enumerate(rows, 1))
        yield from _parsed(numbered, position)


def _csv(file: Path, delimiter: str = ",", quoted: bool = True) -> Reading:
    with open_file(file) as (stream, position):
        yield from _parsed(_table_rows(file, stream, delimiter, quoted), position)


def _table_rows(file: Path, stream: io.BufferedReader, delimiter: str, quoted: bool) -> Rows:
    """The rows of CSV, or of TSV, whose values may not be in quotes."""
    csv.field_size_limit(sys.maxsize)
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    lines = _lines(file, stream)
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True, quoting=quoting)
    try:
        names = reader.fieldnames or []
        _check_header(names, f"{file}, line {reader.line_num}")
        advice = f"put values that contain {delimiter!r} in quotes, and leave none out"
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


def _tsv(file: Path) -> Reading:
    return _csv(file, "\t", _has_quoted_values(file))


def _has_quoted_values(file: Path) -> bool:
    """Whether quotes in a TSV file surround values, as in CSV; else they are part of the text.

    The format knows no quotes, and GLUE's files have plain ones. Spreadsheets and pandas put quotes
    around values with tabs, line breaks or quotes, which they double; others around all values of a
    column. So quotes surround values if the lines of the file can't be rows, but are with quotes;
    or if they can, and each value that begins with a quote was written so.
    """
    with open_file(file) as (stream, _):
        lines = (line.rstrip("\r\n").split("\t") for line in _lines(file, stream) if line.strip())
        header = next(lines, [])
        rows, rows_are_lines, well_formed = 0, True, True
        # For each column, values in quotes, and those that would need none.
        quoted, needless = Counter[int](), Counter[int]()
        for values in lines:
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
    return _is_whole_with_quotes(file, rows_are_lines)


def _is_whole_with_quotes(file: Path, rows_are_lines: bool) -> bool:
    """Whether all rows are valid if quotes surround values.

    If lines can be rows, too, values of several lines must have quotes of their own.
    """
    try:
        with open_file(file) as (stream, _):
            for _, row in _table_rows(file, stream, "\t", quoted=True):
                if isinstance(row, RowError):
                    return False
                values = row.values() if rows_are_lines else ()
                if any("\n" in value and '"' not in value for value in values):
                    return False
    except UserError:
        return False
    return True


def _check_header(names: Sequence[str], place: str) -> None:
    # Empty names are those of a spreadsheet's empty columns.
    for name, times in Counter(filter(None, names)).items():
        if times > 1:
            raise UserError(place, f"got the column {name} {times} times", "rename or remove it")


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


def _parquet(file: Path) -> Reading:
    with pq.ParquetFile(file) as table:
        _check_header(table.schema_arrow.names, str(file))
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


_READERS: dict[str, Callable[[Path], Reading]] = {
    ".txt": _text,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_file,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}


def _lines(file: Path, stream: BinaryIO | io.BufferedReader, offset: int = 0) -> Iterator[str]:
    for line in stream:
        yield _decode(file, line, offset)
        offset += len(line)


def _decode(file: Path, content: bytes, offset: int) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            str(file),
            f"invalid UTF-8 at byte {offset + error.start}",
            "convert the file to UTF-8",
        ) from error
    # Spreadsheets write a byte order mark at the start.
    return text.removeprefix("\N{BYTE ORDER MARK}") if offset == 0 else text


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
