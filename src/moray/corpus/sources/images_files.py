"""Parquet files with a column of images, as datasets on the Hugging Face Hub have them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from moray.config.schema.datasets import LocalFiles
from moray.corpus.dataset import Document
from moray.corpus.sources import Opened
from moray.errors import UserError, first_line
from moray.provenance.manifest import sha256_file

_ROWS_AT_ONCE = 100


def opened(section: LocalFiles, files: Mapping[str, list[str]], temporary: Path) -> Opened:
    """Open the files of each split."""
    found = {split: [Path(name) for name in names] for split, names in files.items()}
    every = [path for paths in found.values() for path in paths]
    names = label_names(every, section.columns.get("label", "label"))
    given = {
        split: partial(images, paths, section.columns, names) for split, paths in found.items()
    }
    return Opened(given, {"files": {str(path): sha256_file(path) for path in every}}, tuple(names))


def label_names(files: Sequence[Path], column: str) -> list[str]:
    """The names of the labels: those that the files describe, or all that occur, sorted.

    Raises:
        UserError: if a file isn't a Parquet file with that column.
    """
    found: set[Any] = set()
    for file in files:
        try:
            schema = pq.read_schema(file)
            if described := _described(schema, column):
                return described
            if column not in schema.names:
                raise no_column(str(file), schema.names, column)
            found.update(pq.read_table(file, columns=[column])[column].unique().to_pylist())
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                str(file),
                f"can't read it as Parquet ({first_line(error)}), which format: images needs",
                "check the file",
            ) from error
    return names_of_labels(found)


def names_of_labels(labels: Iterable[Any]) -> list[str]:
    """The names of labels: texts name themselves, and numbers count from 0."""
    known = {label for label in labels if label is not None}
    if all(isinstance(label, int) for label in known):
        return [str(number) for number in range(max(known, default=-1) + 1)]
    return sorted(map(str, known))


def images(
    files: Sequence[Path], columns: Mapping[str, str], names: list[str]
) -> Iterator[Document]:
    """Yield each row of Parquet files, in columns that may have other names.

    Raises:
        UserError: naming the row without an image or a label.
    """
    for file in files:
        number = 0
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    number += 1
                    yield document(row, columns, names, f"{file}, row {number}")


def document(
    row: Mapping[str, Any], columns: Mapping[str, str], names: list[str], place: str
) -> Document:
    """Convert a row.

    Raises:
        UserError: if it has no image or no label.
    """
    image, label = (columns.get(name, name) for name in ("image", "label"))
    for column in (image, label):
        if column not in row:
            raise no_column(place, row, column)
    content = row[image]
    if isinstance(content, Mapping):
        content = content.get("bytes")
    if not isinstance(content, bytes):
        raise UserError(
            place,
            f"got {type(content).__name__} in column {image}, expected the bytes of an image",
            "embed the images in the table",
        )
    given = row[label]
    if given is None:
        raise UserError(place, f"got nothing in column {label}", "fill it in or remove the row")
    number = given if isinstance(given, int) else names.index(str(given))
    made = Document(image=content, label=number, place=place)
    if "group" in columns:
        if columns["group"] not in row:
            raise no_column(place, row, columns["group"])
        if row[columns["group"]] not in (None, ""):
            made["group"] = str(row[columns["group"]])
    return made


def no_column(place: str, columns: Iterable[str], wanted: str) -> UserError:
    """The fault of a table without a column."""
    return UserError(
        place,
        f"got columns {', '.join(columns)}, expected {wanted}",
        "map the column under columns, or choose another format",
    )


def _described(schema: pa.Schema, column: str) -> list[str] | None:
    """The names in what the library `datasets` writes into a file."""
    written = (schema.metadata or {}).get(b"huggingface")
    if written is None:
        return None
    feature = json.loads(written).get("info", {}).get("features", {}).get(column, {})
    names: list[str] | None = feature.get("names")
    return names
