"""Parquet files with a column of images, as datasets on the Hugging Face Hub have them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from moray.config.schema.datasets import LocalFiles
from moray.corpus.class_labels import class_names, with_names
from moray.corpus.dataset import Document
from moray.corpus.sources import OpenSource
from moray.corpus.values import group_key, spelling_of
from moray.errors import UserError, first_line
from moray.provenance.manifest import sha256_file
from moray.tasks.images.sources import open_images

_ROWS_AT_ONCE = 100


def open_source(section: LocalFiles, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Open the files of each split."""
    by_split = {split: [Path(name) for name in names] for split, names in files.items()}
    every = [path for paths in by_split.values() for path in paths]
    names = label_names(every, section.columns.get("label", "label"))
    splits = {
        split: partial(images, paths, section.columns, names) for split, paths in by_split.items()
    }
    origin = {"files": {str(path): sha256_file(path) for path in every}}
    return open_images(splits, origin, names, "group" in section.columns)


def label_names(files: Sequence[Path], column: str) -> list[str]:
    """The names of the labels: those that files describe, and those that occur in the others.

    Raises:
        UserError: if a file isn't a Parquet file with that column, or has numbers that files with
            names in different orders would name differently.
    """
    orders: list[list[str]] = []
    found_labels: set[Any] = set()
    numbered_file: Path | None = None
    for file in files:
        try:
            schema = pq.read_schema(file)
            if column not in schema.names:
                raise missing_column_error(str(file), schema.names, column)
            if names := class_names(schema).get(column):
                orders.append(names)
                continue
            if pa.types.is_nested(schema.field(column).type):
                raise UserError(
                    str(file),
                    f"got {schema.field(column).type} in column {column}, expected one class",
                    "name a column with a single class of each image under columns.label",
                )
            labels = pq.read_table(file, columns=[column])[column].unique().to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                str(file),
                f"can't read it as Parquet ({first_line(error)}), which format: images needs",
                "check the file",
            ) from error
        found_labels.update(labels)
        if any(_is_number(label) for label in labels):
            numbered_file = file
    if not orders:
        return names_of_labels(found_labels)
    if numbered_file and any(order != orders[0] for order in orders):
        raise UserError(
            str(numbered_file),
            f"got numbers without names in column {column}, which other files name differently",
            "write the names of the labels as text",
        )
    texts = sorted(label for label in found_labels if isinstance(label, str))
    return list(dict.fromkeys(chain(*orders, texts)))


def names_of_labels(labels: Iterable[Any]) -> list[str]:
    """The names of labels: texts name themselves, and numbers count from 0."""
    values = {label for label in labels if spelling_of(label) is not None}
    if all(_is_number(label) for label in values):
        return [str(number) for number in range(int(max(values, default=-1)) + 1)]
    return sorted({str(spelling_of(label)) for label in values})


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
            class_names_by_column = class_names(table.schema_arrow)
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    number += 1
                    row_with_names = with_names(row, class_names_by_column)
                    yield document(row_with_names, columns, names, f"{file}, row {number}")


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
            raise missing_column_error(place, row, column)
    content = row[image]
    if isinstance(content, Mapping):
        content = content.get("bytes")
    if not isinstance(content, bytes):
        raise UserError(
            place,
            f"got {type(content).__name__} in column {image}, expected the bytes of an image",
            "embed the images in the table",
        )
    fields = Document(image=content, label=_label(row[label], label, names, place), place=place)
    if "group" in columns:
        if columns["group"] not in row:
            raise missing_column_error(place, row, columns["group"])
        if (group := group_key(row[columns["group"]])) is not None:
            fields["group"] = group
    return fields


def _label(value: Any, column: str, names: list[str], place: str) -> int:
    """The number of a label."""
    spelling = spelling_of(value)
    if spelling is None:
        raise UserError(place, f"got nothing in column {column}", "fill it in or remove the row")
    if spelling in names:
        return names.index(spelling)
    if _is_number(value):
        # Refused if there is no such label, see `ImageSurvey`.
        return int(value)
    raise UserError(place, f"got label {spelling}, which has no name", "fix the label")


def _is_number(label: Any) -> bool:
    return isinstance(label, int) or (isinstance(label, float) and label.is_integer())


def missing_column_error(place: str, columns: Iterable[str], column: str) -> UserError:
    """The fault of a table without a column."""
    return UserError(
        place,
        f"got columns {', '.join(columns)}, expected {column}",
        "map the column under columns, or choose another format",
    )
