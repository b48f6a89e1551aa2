"""Rows that are divided among splits, as a download does it, from documents."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from moray.config.tasks import FORMATS, FormatName
from moray.corpus.copies import Copies
from moray.corpus.dataset import SPLITS, Document, documents_of
from moray.corpus.parts import ReadyDocuments
from moray.corpus.split import Counts, Divided, by_hash, by_tail
from moray.corpus.staging import Sketches, StagedRows, Staging, without_facts

Splits = Mapping[str, Sequence[Document]]
Row = tuple[str, Document]

_PARTS = 20


@contextmanager
def stage_rows(
    splits: Splits, validation: float, test: float, sketches: Sketches | None = None
) -> Iterator[StagedRows]:
    """The rows of documents in files, of some documents at a time."""
    staging = Staging(_format_of(splits), True, validation, test, sketches)
    with tempfile.TemporaryDirectory() as folder:
        rows = StagedRows(Path(folder), splits.keys())
        for split, documents in splits.items():
            for path in rows.files(split).values():
                path.write_bytes(b"")
            size = max(1, len(documents) // _PARTS)
            for start in range(0, len(documents), size):
                part = ReadyDocuments([*documents[start : start + size]])
                for end, stream in staging((split, part)).streams.items():
                    with rows.files(split)[end].open("ab") as file:
                        file.write(stream)
        yield rows


def divide_by_hash(
    splits: Splits,
    validation: float,
    test: float,
    counts: Counts,
    copies: Copies | None = None,
    sketches: Sketches | None = None,
) -> list[Row]:
    """The rows that are kept, each with its split, as they were."""
    with stage_rows(splits, validation, test, sketches) as rows:
        return [*_rows(by_hash(rows, counts, copies))]


def divide_by_tail(splits: Splits, validation: float, test: float, counts: Counts) -> list[Row]:
    staging = Staging("text", True, 0.0, 0.0)
    with stage_rows(splits, 0.0, 0.0) as rows:
        return [*_rows(by_tail(rows, counts, staging, validation, test))]


def _format_of(splits: Splits) -> FormatName:
    names = {name for documents in splits.values() for one in documents for name in one}
    names -= {"group", "place"}
    return next(name for name in FORMATS if names <= {*FORMATS[name].kept})


def _rows(divided: Divided) -> Iterator[Row]:
    for table, splits in divided:
        for number, row in zip(splits, documents_of(without_facts(table)), strict=True):
            yield SPLITS[number], row
