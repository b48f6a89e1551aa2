"""Datasets of images from the Hugging Face Hub, at a fixed commit."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import datasets

from moray.config.schema.datasets import HubDataset
from moray.config.splits import expressions_by_split
from moray.corpus.class_labels import with_names
from moray.corpus.dataset import Document
from moray.corpus.hub import load, origin, place_of_split
from moray.corpus.loaded_rows import LoadedRows, class_names_of, decode
from moray.corpus.sources import OpenSource
from moray.tasks.images.sources import open_images
from moray.tasks.images.sources.files import document, missing_column_error, names_of_labels


def open_source(section: HubDataset, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Load the rows of each split."""
    repo_id, columns = section.repo_id, section.columns
    image, label = (columns.get(key, key) for key in ("image", "label"))
    rows_by_split = {}
    labels = set[Any]()
    names: list[str] | None = None
    expressions = expressions_by_split(section.split)
    for split, expression in expressions.items():
        loaded = load(repo_id, section.revision, section.name, section.data_dir, expression)
        for column in (image, label):
            if column not in loaded.features:
                raise missing_column_error(repo_id, loaded.features, column)
        names = names or getattr(loaded.features[label], "names", None)
        if not names:
            labels.update(*(table[label].unique().to_pylist() for table in loaded.tables()))
        rows_by_split[split] = loaded
    all_names = names or names_of_labels(labels)
    splits: dict[str, Callable[[], Iterator[Document]]] = {}
    for split, loaded in rows_by_split.items():
        place = place_of_split(repo_id, expressions, split)
        splits[split] = partial(_documents, place, loaded, columns, all_names)
    return open_images(splits, origin(section), all_names, "group" in columns)


def _documents(
    place: str, loaded: LoadedRows, columns: Mapping[str, str], names: list[str]
) -> Iterator[Document]:
    features = loaded.features.copy()
    image = columns.get("image", "image")
    if isinstance(features[image], datasets.Image):
        # Otherwise, the library decodes them.
        features[image] = datasets.Image(decode=False)
    names_by_column = class_names_of(features)
    rows = chain.from_iterable(decode(table, features) for table in loaded.tables())
    for number, row in enumerate(rows, 1):
        yield document(with_names(row, names_by_column), columns, names, f"{place}, row {number}")
