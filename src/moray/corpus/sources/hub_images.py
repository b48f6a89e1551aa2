"""Datasets of images from the Hugging Face Hub, at a fixed commit."""

from collections.abc import Iterator, Mapping
from functools import partial

import datasets

from moray.corpus.document import Document
from moray.corpus.sources import hub, image_table
from moray.corpus.split import Documents
from moray.errors import UserError


def load(
    repo_id: str,
    revision: str | None,
    name: str | None,
    data_dir: str | None,
    expressions: Mapping[str, str],
    columns: Mapping[str, str],
) -> tuple[dict[str, Documents], list[str]]:
    """Load splits into the Hub's local cache; see `hub.load`.

    Returns:
        The documents of each split, and the names of their labels.
    """
    image, label = (columns.get(key, key) for key in ("image", "label"))
    found, labels = {}, set()
    names: list[str] | None = None
    for split, expression in expressions.items():
        rows = hub.load(repo_id, revision, name, data_dir, expression)
        for column in (image, label):
            if column not in rows.features:
                raise UserError(
                    repo_id,
                    f"got columns {', '.join(rows.features)}, expected {column}",
                    "map the column under columns, or choose another format",
                )
        if isinstance(rows.features[image], datasets.Image):
            # Otherwise, the library decodes them.
            rows = rows.cast_column(image, datasets.Image(decode=False))
        names = names or getattr(rows.features[label], "names", None)
        labels.update(rows.unique(label))
        found[split] = rows
    known = names or image_table.names_of_labels(labels)
    given: dict[str, Documents] = {
        split: partial(_documents, repo_id, rows, columns, known) for split, rows in found.items()
    }
    return given, known


def _documents(
    repo_id: str, rows: datasets.Dataset, columns: Mapping[str, str], names: list[str]
) -> Iterator[Document]:
    for number, row in enumerate(rows, 1):
        yield image_table.document(row, columns, names, f"{repo_id}, row {number}")
