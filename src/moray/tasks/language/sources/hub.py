"""Datasets of text from the Hugging Face Hub, at a fixed commit."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import datasets

from moray.config.schema.datasets import HubDataset
from moray.config.splits import expressions_by_split
from moray.corpus.bad_rows import BadRows
from moray.corpus.class_labels import with_names
from moray.corpus.dataset import Document, RowError
from moray.corpus.hub import class_names_of, load, origin, place_of_split
from moray.corpus.sources import OpenSource
from moray.corpus.split import Documents
from moray.tasks.language.formats import Shape, document
from moray.tasks.language.sources.tables import TableRows


def open_source(section: HubDataset, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Load the rows of each split."""
    bad_rows = BadRows(section.bad_rows)
    shape = Shape(section.format, section.columns, section.system, bad_rows)
    splits: dict[str, Documents] = {}
    expressions = expressions_by_split(section.split)
    for split, expression in expressions.items():
        rows = load(section.repo_id, section.revision, section.name, section.data_dir, expression)
        place = place_of_split(section.repo_id, expressions, split)
        own = replace(shape, bad_rows=bad_rows.of(split))
        splits[split] = partial(documents, place, rows, own)
    return OpenSource(
        splits,
        origin(section),
        bad_rows=bad_rows,
        columns=shape.table_columns,
        remarks=shape.remarks,
    )


def documents(place: str, rows: datasets.Dataset, shape: Shape) -> Iterator[Document]:
    """Yield the documents of a loaded split.

    Raises:
        UserError: naming the row that isn't a valid document.
    """
    names = class_names_of(rows)
    # The library has parsed the JSON in its columns.
    table_rows = TableRows(rows.features.arrow_schema, place, parsed=True)
    for number, row in enumerate(rows, 1):
        here = shape.remarks.place = f"{place}, row {number}"
        try:
            yield document(with_names(table_rows.as_json(row), names), shape)
        except RowError as error:
            shape.bad_rows.meet(here, error)
