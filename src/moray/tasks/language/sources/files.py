"""Files of text or of tables, compressed or not, on this machine or on a shared file system."""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from moray.config.schema.datasets import LocalFiles, Url
from moray.config.tasks import FORMATS
from moray.corpus.bad_rows import BadRows
from moray.corpus.class_labels import class_names, with_names
from moray.corpus.dataset import Document, RowError, content
from moray.corpus.sources import OpenSource
from moray.errors import UserError, first_line
from moray.provenance.manifest import sha256_file
from moray.tasks.language.formats import Shape, document
from moray.tasks.language.sources.json_tables import misplaced_rows, only_value
from moray.tasks.language.sources.tables import TableRows

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row | RowError]]
"""Places in a file, and the rows there, or what is wrong with them."""

# The names in pyarrow of the compressions, by the ending of files.
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}

# A value of CSV in quotes, in which quotes are doubled.
_QUOTED = re.compile(r'"(?:[^"]|"")*"')

# Larger text files are split into several documents, to limit memory.
_TEXT_BYTES = 4 * 2**20


def open_source(section: LocalFiles, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Open the files of each split."""
    paths = {split: {name: Path(name) for name in names} for split, names in files.items()}
    return open_files(section, paths)


def open_files(section: LocalFiles | Url, by_split: Mapping[str, Mapping[str, Path]]) -> OpenSource:
    """Open files that are known under other names, which are in errors and in the description."""
    bad_rows = BadRows(section.bad_rows)
    shape = Shape(section.format, section.columns, section.system, bad_rows)
    splits = {
        split: partial(documents, files, replace(shape, bad_rows=bad_rows.of(split)))
        for split, files in by_split.items()
    }
    every = {name: file for files in by_split.values() for name, file in files.items()}
    origin = {"files": {name: sha256_file(file) for name, file in every.items()}}
    return OpenSource(
        splits, origin, bad_rows=bad_rows, columns=shape.table_columns, remarks=shape.remarks
    )


def place_of(target: Document, section: LocalFiles, files: Mapping[str, list[str]]) -> str | None:
    """The file of a document and the location in it; None if it isn't there any more."""
    shape = Shape(section.format, section.columns, section.system, BadRows(section.bad_rows))
    every = {name: Path(name) for names in files.values() for name in names}
    same = (place for place, one in _with_places(every, shape) if content(one) == content(target))
    try:
        return next(same, None)
    except UserError:
        return None


def documents(files: Mapping[str, Path], shape: Shape) -> Iterator[Document]:
    """Yield all documents of files, which errors call by other names, in order.

    Raises:
        UserError: if a file can't be read; it names the file and the location in it.
    """
    return (document for _, document in _with_places(files, shape))


def _with_places(files: Mapping[str, Path], shape: Shape) -> Iterator[tuple[str, Document]]:
    """The documents, each with its file and the location in it."""
    for name, file in files.items():
        try:
            for location, row in _read(file):
                place = shape.remarks.place = f"{name}, {location}"
                try:
                    if isinstance(row, RowError):
                        raise row
                    yield place, document(row, shape)
                except RowError as error:
                    shape.bad_rows.meet(place, _explain(error, location, name, file, shape))
        except UserError as error:
            path = error.path.replace(str(file), name)
            raise UserError(path, error.problem, error.remedy) from error
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise UserError(
                name, f"can't read the file ({first_line(error)})", "check the file"
            ) from error


def _explain(error: RowError, location: str, name: str, file: Path, shape: Shape) -> RowError:
    """The error of a row, or of its file if that is one JSON object with all rows."""
    if location != "line 1" or not _kind(file).startswith((".json", ".ndjson")):
        return error
    with _open(file) as stream:
        value = only_value(stream)
    format = FORMATS[shape.format]
    columns, nested = (
        {shape.columns.get(column, column) for column in names}
        for names in (format.columns, format.nested)
    )
    return misplaced_rows(value, name, columns, nested) or error


def _kind(file: Path) -> str:
    """The ending of a file, without that of its compression."""
    compressed = file.suffix.lower() in _COMPRESSED
    return (Path(file.stem).suffix if compressed else file.suffix).lower()


def _read(file: Path) -> Rows:
    compressed, kind = file.suffix.lower() in _COMPRESSED, _kind(file)
    if kind not in _READERS or (kind == ".parquet" and compressed):
        raise UserError(
            str(file),
            f"got the extension {file.suffix!r}, expected {', '.join(_READERS)} (all but the last "
            "may be followed by .gz or .zst)",
            "rename or convert the file",
        )
    return _READERS[kind](file)


def _open(file: Path) -> io.BufferedReader:
    compression = _COMPRESSED.get(file.suffix.lower())
    return io.BufferedReader(pa.input_stream(str(file), compression=compression))


def _text(file: Path) -> Rows:
    with _open(file) as stream:
        offset = 0
        while part := stream.read(_TEXT_BYTES):
            # Up to the end of a line, so that no character is cut.
            part += stream.readline()
            yield f"byte {offset}", {"text": _decode(file, part, offset)}
            offset += len(part)


def _json_lines(file: Path) -> Rows:
    with _open(file) as stream:
        for number, line in enumerate(_lines(file, stream), 1):
            if line.strip():
                yield f"line {number}", _row_of_line(file, line.rstrip("\r\n"), number)


def _json_file(file: Path) -> Rows:
    """A list of rows, or one row per line, which is common too."""
    with _open(file) as stream:
        start = stream.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        if start != b"[":
            yield from _json_lines(file)
            return
        rows = _json(file, _decode(file, stream.read(), 0), 1)
        for number, row in enumerate(rows, 1):
            yield f"entry {number}", _mapping(row)


def _csv(file: Path, delimiter: str = ",", quoted: bool = True) -> Rows:
    csv.field_size_limit(sys.maxsize)
    with _open(file) as stream:
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


def _tsv(file: Path) -> Rows:
    return _csv(file, "\t", _has_quoted_values(file))


def _has_quoted_values(file: Path) -> bool:
    """Whether quotes in a TSV file surround values, as in CSV; else they are part of the text.

    The format knows no quotes, and GLUE's files have plain ones. Spreadsheets and pandas put quotes
    around values with tabs, line breaks or quotes, which they double; others around all values of a
    column. So quotes surround values if the lines of the file can't be rows, but are with quotes;
    or if they can, and each value that begins with a quote was written so.
    """
    with _open(file) as stream:
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
        for _, row in _csv(file, "\t"):
            if isinstance(row, RowError):
                return False
            if rows_are_lines and any("\n" in value and '"' not in value for value in row.values()):
                return False
    except UserError:
        return False
    return True


def _check_header(names: Sequence[str], place: str) -> None:
    # Empty names are those of a spreadsheet's empty columns.
    for name, times in Counter(filter(None, names)).items():
        if times > 1:
            raise UserError(place, f"got the column {name} {times} times", "rename or remove it")


def _parquet(file: Path) -> Rows:
    with pq.ParquetFile(file) as table:
        _check_header(table.schema_arrow.names, str(file))
        names = class_names(table.schema_arrow)
        table_rows = TableRows(table.schema_arrow, str(file))
        number = 0
        for batch in table.iter_batches(batch_size=1000):
            try:
                rows = batch.to_pylist()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{file}, rows {number + 1} to {number + batch.num_rows}",
                    "invalid UTF-8",
                    "convert the text to UTF-8",
                ) from error
            for row in rows:
                number += 1
                try:
                    yield f"row {number}", with_names(table_rows.as_json(row), names)
                except RowError as error:
                    yield f"row {number}", error


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".txt": _text,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_file,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}


def _lines(file: Path, stream: io.BufferedReader) -> Iterator[str]:
    offset = 0
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
