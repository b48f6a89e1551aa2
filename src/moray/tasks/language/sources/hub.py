"""Datasets of text from the Hugging Face Hub, at a fixed commit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import datasets
import pyarrow as pa

from moray.config.schema.datasets import HubDataset
from moray.config.splits import expressions_by_split
from moray.corpus.class_labels import with_names
from moray.corpus.dataset import RowError
from moray.corpus.hub import load, origin, place_of_split
from moray.corpus.loaded_rows import LoadedRows, class_names_of, decode
from moray.corpus.parts import PART_BYTES, Part, in_groups
from moray.corpus.remarks import Remarks
from moray.corpus.sources import OpenSource
from moray.tasks.language.formats import Shape
from moray.tasks.language.sources.files import TablePart
from moray.tasks.language.sources.tables import Rows, TableRows


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
        num_bytes += rows.num_bytes
    return OpenSource(
        splits,
        origin(section),
        num_bytes=num_bytes,
        bad_rows=section.bad_rows,
        max_bad_rows=section.max_bad_rows,
        has_columns=True,
    )


@dataclass(frozen=True)
class _Tables:
    """Some rows of a loaded split.

    Attributes:
        number: that of the first row.
        stream: the rows as Arrow's stream, which pickles no more than them.
    """

    place: str
    number: int
    stream: pa.Buffer
    features: datasets.Features

    def rows(self, remarks: Remarks) -> Rows:
        schema, names = self.features.arrow_schema, class_names_of(self.features)
        # The library parses the JSON in its columns.
        table_rows = TableRows(schema, self.place, remarks, parsed=True)
        with pa.ipc.open_stream(self.stream) as stream:
            table = stream.read_all()
        for number, row in enumerate(decode(table, self.features), self.number):
            try:
                yield f"row {number}", with_names(table_rows.as_json(row), names)
            except RowError as error:
                yield f"row {number}", error


def parts(place: str, loaded: LoadedRows, shape: Shape) -> Iterator[TablePart]:
    """The parts of a loaded split, which errors call by its place."""
    tables = chain.from_iterable(map(_small, loaded.tables()))
    number = 1
    for group in in_groups(tables, lambda one: one.nbytes):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, group[0].schema) as stream:
            for table in group:
                stream.write_table(table)
        num_rows = sum(map(len, group))
        unparsed = _Tables(place, number, sink.getvalue(), loaded.features)
        size = loaded.num_bytes * num_rows // loaded.num_rows
        yield TablePart(place, Path(place), unparsed, shape, size)
        number += num_rows


def _small(table: pa.Table) -> Iterator[pa.Table]:
    """Slices of a table that are small enough for a part."""
    num_rows = max(1, len(table) * PART_BYTES // max(1, table.nbytes))
    return (table.slice(start, num_rows) for start in range(0, len(table), num_rows))
