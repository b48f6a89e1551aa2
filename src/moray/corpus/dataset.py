"""A dataset on disk: one Parquet file a split, and `dataset.json` that says where it is from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from moray.corpus.document import COLUMNS, Document
from moray.errors import UserError
from moray.provenance.digest import sha256_file
from moray.provenance.manifest import write_json

SPLITS = ("train", "validation", "test")
_ROWS_AT_ONCE = 1000


def write_dataset(
    folder: Path, rows: Iterator[tuple[str, Document]], format: str, origin: dict[str, Any]
) -> dict[str, Any]:
    """Write documents to the file of their split, and what they are to `dataset.json`.

    Args:
        folder: where `train.parquet`, `validation.parquet`, `test.parquet` go.
        rows: pairs of split and document.
        origin: what `dataset.json` says of the source.

    Returns:
        What `dataset.json` says.

    Raises:
        UserError: if the train or the test split gets no row.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").unlink(missing_ok=True)
    columns = COLUMNS[format]
    schema = pa.schema([(column, pa.string()) for column in columns])
    waiting: dict[str, list[Document]] = {split: [] for split in SPLITS}
    counts = {split: {"rows": 0, "bytes": 0} for split in SPLITS}
    writers = {split: pq.ParquetWriter(folder / f"{split}.parquet", schema) for split in SPLITS}

    def flush(split: str) -> None:
        batch = [{column: row.get(column) for column in columns} for row in waiting[split]]
        writers[split].write_table(pa.Table.from_pylist(batch, schema))
        waiting[split].clear()

    for split, document in rows:
        waiting[split].append(document)
        counts[split]["rows"] += 1
        counts[split]["bytes"] += sum(len(str(document.get(c, "")).encode()) for c in columns)
        if len(waiting[split]) == _ROWS_AT_ONCE:
            flush(split)
    for split in SPLITS:
        flush(split)
        writers[split].close()
    for split in ("train", "test"):
        if counts[split]["rows"] == 0:
            raise UserError(
                f"{folder}/{split}.parquet",
                f"got no rows out of {sum(count['rows'] for count in counts.values())}",
                "give the dataset more documents or change its shares",
            )
    splits = {
        split: {**counts[split], "sha256": sha256_file(folder / f"{split}.parquet")}
        for split in SPLITS
    }
    description = {**origin, "format": format, "splits": splits}
    write_json(folder / "dataset.json", description)
    return description


def read_documents(file: Path) -> Iterator[list[Document]]:
    """The documents of a split, in batches, in a memory that doesn't grow with the file."""
    with pq.ParquetFile(file) as table:
        for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE):
            yield batch.to_pylist()
