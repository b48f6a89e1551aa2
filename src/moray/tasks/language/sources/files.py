"""Files of text or of tables, compressed or not, on this machine or on a shared file system."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from moray.config.schema.datasets import LocalFiles, Url
from moray.config.tasks import FORMATS
from moray.corpus.bad_rows import BadRows
from moray.corpus.dataset import Document, RowError, content
from moray.corpus.findings import Findings
from moray.corpus.parts import PART_BYTES, Part, in_groups
from moray.corpus.remarks import Remarks
from moray.corpus.sources import OpenSource
from moray.errors import UserError, first_line
from moray.provenance.manifest import sha256_file
from moray.tasks.language.formats import Shape, document
from moray.tasks.language.sources.delimited import other_delimiter
from moray.tasks.language.sources.json_tables import misplaced_rows, only_value
from moray.tasks.language.sources.opened import Form, is_compressed, kind_of, open_file
from moray.tasks.language.sources.readers import Unparsed, read
from moray.tasks.language.sources.tables import Rows

_FIRST_LINE = "line 1"


def open_source(section: LocalFiles, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Open the files of each split."""
    paths = {split: {name: Path(name) for name in names} for split, names in files.items()}
    return open_files(section, paths)


def open_files(section: LocalFiles | Url, by_split: Mapping[str, Mapping[str, Path]]) -> OpenSource:
    """Open files that are known under other names, which are in errors and in the description."""
    shape = Shape(section.format, section.columns, section.system)
    every = {name: file for files in by_split.values() for name, file in files.items()}
    forms, delimiters = _forms(every, section)
    origin: dict[str, Any] = {"files": {name: sha256_file(file) for name, file in every.items()}}
    # Of a few rows, it isn't known how much of the files they are.
    num_bytes = 0 if section.max_rows else sum(file.stat().st_size for file in every.values())
    return OpenSource(
        {
            split: partial(_large_parts, files, shape, forms, section.max_rows)
            for split, files in by_split.items()
        },
        origin | ({"delimiters": delimiters} if delimiters else {}),
        num_bytes=num_bytes,
        bad_rows=section.bad_rows,
        max_bad_rows=section.max_bad_rows,
        has_columns=True,
    )


def place_of(target: Document, section: LocalFiles, files: Mapping[str, list[str]]) -> str | None:
    """The file of a document and the location in it; None if the files no longer have it."""
    shape = Shape(section.format, section.columns, section.system)
    every = {name: Path(name) for names in files.values() for name in names}
    findings, (forms, _) = Findings(BadRows("drop")), _forms(every, section)
    try:
        for part in parts(every, shape, forms):
            for place, one in part.with_places(findings):
                if content(one) == content(target):
                    return place
    except UserError:
        pass
    return None


def _forms(
    files: Mapping[str, Path], section: LocalFiles | Url
) -> tuple[dict[str, Form], dict[str, str]]:
    """How each file is written, and the delimiters that only the headers say."""
    told = Form(section.delimiter, section.encoding)
    found = {
        name: delimiter
        for name, file in files.items()
        if section.delimiter is None
        and (delimiter := other_delimiter(file, section.encoding, section.columns.values()))
    }
    return {name: replace(told, delimiter=found.get(name, told.delimiter)) for name in files}, found


@dataclass(frozen=True)
class TablePart:
    """Some rows of a table.

    Attributes:
        name: what errors call its file.
        fault_of_file: if the file is one JSON value with all rows in it, the fault that its first
            line has for that reason.
    """

    name: str
    file: Path
    unparsed: Unparsed
    shape: Shape
    num_bytes: int
    fault_of_file: RowError | None = None

    def documents(self, findings: Findings) -> Iterator[Document]:
        return (document for _, document in self.with_places(findings))

    def with_places(self, findings: Findings) -> Iterator[tuple[str, Document]]:
        """The documents, each with its file and the location in it."""
        shape = replace(self.shape, findings=findings)
        with _explain(self.name, self.file):
            for location, row in self.unparsed.rows(findings.remarks):
                place = findings.remarks.place = f"{self.name}, {location}"
                try:
                    if isinstance(row, RowError):
                        raise row
                    yield place, document(row, shape)
                except RowError as error:
                    fault = self.fault_of_file if location == _FIRST_LINE else None
                    findings.bad_rows.meet(place, fault or error)


def parts(
    files: Mapping[str, Path], shape: Shape, forms: Mapping[str, Form] | None = None
) -> Iterator[TablePart]:
    """The parts of files, which errors call by other names, in order.

    Args:
        forms: how each file is written; None for what is usual.

    Raises:
        UserError: if a file can't be read; it names the file and the location in it.
    """
    for name, file in files.items():
        with _explain(name, file):
            before = 0
            form = forms[name] if forms else Form()
            for unparsed, position in read(file, form):
                fault = None if before else _fault_of_file(unparsed, name, file, form, shape)
                yield TablePart(name, file, unparsed, shape, position - before, fault)
                before = position


@dataclass(frozen=True)
class _SmallParts:
    """Parts of small files, because each one to write takes two milliseconds."""

    parts: list[TablePart]

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    def documents(self, findings: Findings) -> Iterator[Document]:
        return chain.from_iterable(part.documents(findings) for part in self.parts)


def _large_parts(
    files: Mapping[str, Path], shape: Shape, forms: Mapping[str, Form], max_rows: int | None
) -> Iterator[Part]:
    some = parts(files, shape, forms)
    return map(_SmallParts, in_groups(_first(some, max_rows) if max_rows else some, _size_of))


@dataclass(frozen=True)
class _FirstRows:
    """The first rows of some."""

    unparsed: Unparsed
    number: int

    def rows(self, remarks: Remarks) -> Rows:
        return islice(self.unparsed.rows(remarks), self.number)


def _first(some: Iterator[TablePart], max_rows: int) -> Iterator[TablePart]:
    """The parts with the first rows of a split, which are parsed here once more to count them."""
    left = max_rows
    for part in some:
        with _explain(part.name, part.file):
            number = sum(1 for _ in islice(part.unparsed.rows(Remarks()), left))
        yield replace(part, unparsed=_FirstRows(part.unparsed, number))
        left -= number
        if not left:
            return


def _size_of(part: TablePart) -> int:
    # Of a compressed file, it isn't known.
    return PART_BYTES if is_compressed(part.file) else part.num_bytes


@contextmanager
def _explain(name: str, file: Path) -> Iterator[None]:
    """Raise errors of reading a file by the name that it is known under."""
    try:
        yield
    except UserError as error:
        path = error.path.replace(str(file), name)
        raise UserError(path, error.problem, error.remedy) from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(
            name, f"can't read the file ({first_line(error)})", "check the file"
        ) from error


def _fault_of_file(
    first: Unparsed, name: str, file: Path, form: Form, shape: Shape
) -> RowError | None:
    """The fault of a file that is one JSON value with all rows in it, by its first rows."""
    if not kind_of(file).startswith((".json", ".ndjson")):
        return None
    findings = Findings()
    location, row = next(first.rows(findings.remarks), ("", {}))
    if location != _FIRST_LINE:
        return None
    try:
        if isinstance(row, RowError):
            raise row
        document(row, replace(shape, findings=findings))
    except RowError:
        with open_file(file, form.encoding) as (stream, _):
            value = only_value(stream)
        format = FORMATS[shape.format]
        columns, nested = (
            {shape.columns.get(column, column) for column in names}
            for names in (format.columns, format.nested)
        )
        return misplaced_rows(value, name, columns, nested)
    return None
