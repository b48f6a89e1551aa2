"""Local files as a corpus: text files as documents, tables as rows."""

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import datasets

from moray.corpus.document import COLUMNS, Document
from moray.errors import UserError

# Otherwise each local file that is read is reported to the hub; where there is no network, that
# takes seconds a file.
datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False

_BUILDERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def documents(files: list[Path], format: str) -> Iterator[Document]:
    """All documents of some files, in order.

    Raises:
        UserError: naming the file that can't be read, or that lacks a column of the format.
    """
    for file in files:
        if file.suffix == ".txt":
            yield _text_file(file, format)
        elif file.suffix in _BUILDERS:
            yield from _table(file, format)
        else:
            raise UserError(
                str(file),
                f"got the ending {file.suffix!r}, expected .txt or {', '.join(_BUILDERS)}",
                "rename or convert the file",
            )


def _text_file(file: Path, format: str) -> Document:
    if format != "text":
        raise UserError(str(file), f"got a .txt file for {format}", "set format: text")
    try:
        return Document(text=file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise UserError(
            str(file), f"got an unreadable file ({error.strerror})", "check the file"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            str(file), f"got invalid UTF-8 at byte {error.start}", "convert the file to UTF-8"
        ) from error


def _table(file: Path, format: str) -> Iterator[Document]:
    wanted = COLUMNS[format]
    options: dict[str, Any] = {}
    if file.suffix == ".csv":
        # Otherwise a column of digits comes as numbers, and "", "NA" or "null" as nothing.
        options = {"converters": dict.fromkeys(wanted, str), "keep_default_na": False}
    try:
        rows = datasets.load_dataset(
            _BUILDERS[file.suffix],
            # The name is read as a pattern: a[1].csv would bring in a1.csv.
            data_files=glob.escape(str(file)),
            split="train",
            streaming=True,
            **options,
        )
        for number, row in enumerate(rows, 1):
            if missing := [name for name in wanted if name not in row]:
                raise UserError(
                    str(file),
                    f"got columns {', '.join(row)}, expected {', '.join(missing)}",
                    "rename the columns or choose the format that fits",
                )
            if others := [name for name in wanted if not isinstance(row[name], str)]:
                got = "nothing" if row[others[0]] is None else type(row[others[0]]).__name__
                raise UserError(
                    str(file),
                    f"got {got} in column {others[0]} of row {number}, expected text",
                    "fill in the value or leave the row out",
                )
            yield cast(Document, {name: row[name] for name in wanted})
    except UserError:
        raise
    except Exception as error:
        first = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(
            str(file), f"got an unreadable {file.suffix} file ({first})", "check the file"
        ) from error
