"""Datasets of text from the Hugging Face Hub, at a fixed commit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from moray.config.schema.datasets import HubDataset
from moray.config.splits import expressions_by_split
from moray.corpus.class_labels import Names, with_names
from moray.corpus.dataset import RowError
from moray.corpus.hub import class_names_of, load, origin, place_of_split
from moray.corpus.parts import Part, in_groups, size_of_texts
from moray.corpus.remarks import Remarks
from moray.corpus.sources import OpenSource
from moray.tasks.language.formats import Shape
from moray.tasks.language.sources.files import TablePart
from moray.tasks.language.sources.readers import Rows
from moray.tasks.language.sources.tables import TableRows


def open_source(section: HubDataset, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Load the rows of each split."""
    shape = Shape(section.format, section.columns, section.system)
    splits: dict[str, Callable[[], Iterator[Part]]] = {}
    num_bytes = 0
    expressions = expressions_by_split(section.split)
    for split, expression in expressions.items():
        rows = load(section.repo_id, section.revision, section.name, section.data_dir, expression)
        place = place_of_split(section.repo_id, expressions, split)
        splits[split] = partial(parts, place, rows, shape)
        num_bytes += rows.data.nbytes
    return OpenSource(
        splits,
        origin(section),
        num_bytes=num_bytes,
        bad_rows=section.bad_rows,
        has_columns=True,
    )


@dataclass(frozen=True)
class _LoadedRows:
    """Some rows of a loaded split; the library has parsed the JSON in its columns."""

    place: str
    number: int
    loaded: list[Mapping[str, Any]]
    schema: pa.Schema
    names: Names

    def rows(self, remarks: Remarks) -> Rows:
        table_rows = TableRows(self.schema, self.place, remarks, parsed=True)
        for number, row in enumerate(self.loaded, self.number):
            try:
                yield f"row {number}", with_names(table_rows.as_json(row), self.names)
            except RowError as error:
                yield f"row {number}", error


def parts(place: str, rows: datasets.Dataset, shape: Shape) -> Iterator[TablePart]:
    """The parts of a loaded split, which errors call by its place."""
    names, schema = class_names_of(rows), rows.features.arrow_schema
    number = 1
    for group in in_groups(rows, size_of_texts):
        unparsed = _LoadedRows(place, number, group, schema, names)
        size = rows.data.nbytes * len(group) // len(rows)
        yield TablePart(place, Path(place), unparsed, shape, size)
        number += len(group)
