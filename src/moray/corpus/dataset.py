"""A dataset on disk: one Parquet file a split, and `dataset.json` that says where it is from.

Row groups are bounded in bytes: they are what later stages hold in memory at a time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from moray.corpus.document import COLUMNS, Document
from moray.errors import UserError
from moray.provenance.digest import sha256_file
from moray.provenance.manifest import write_json

SPLITS = ("train", "validation", "test")
_GROUP_BYTES = 4 * 2**20


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
    writers = {split: _SplitWriter(folder / f"{split}.parquet", schema) for split in SPLITS}
    for split, document in rows:
        writers[split].add(document)
    for writer in writers.values():
        writer.close()
    for split in ("train", "test"):
        if writers[split].rows == 0:
            raise UserError(
                f"{folder}/{split}.parquet",
                f"got no rows out of {sum(writer.rows for writer in writers.values())}",
                "give the dataset more documents or change its shares",
            )
    splits = {
        split: {"rows": writer.rows, "bytes": writer.bytes, "sha256": sha256_file(writer.path)}
        for split, writer in writers.items()
    }
    description = {**origin, "format": format, "splits": splits}
    write_json(folder / "dataset.json", description)
    return description


class _SplitWriter:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.rows, self.bytes = path, 0, 0
        self._schema = schema
        self._file = pq.ParquetWriter(path, schema)
        self._waiting: list[Document] = []
        self._waiting_bytes = 0

    def add(self, document: Document) -> None:
        size = sum(len(str(document.get(name) or "").encode()) for name in self._schema.names)
        self._waiting.append(document)
        self._waiting_bytes += size
        self.rows += 1
        self.bytes += size
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        if self._waiting:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        columns = {
            name: [document.get(name) for document in self._waiting] for name in self._schema.names
        }
        table = pa.table(columns, self._schema)
        self._file.write_table(table, row_group_size=len(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0


def num_groups(file: Path) -> int:
    """Row groups of a split."""
    with pq.ParquetFile(file) as table:
        return int(table.num_row_groups)


def share_of_group(file: Path, group: int) -> float:
    """How much of a split's bytes a row group has."""
    metadata = pq.read_metadata(file)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    sizes = [content.total_byte_size for content in groups]
    return float(sizes[group] / sum(sizes))


def read_group(file: Path, group: int) -> list[Document]:
    """The documents of a row group."""
    with pq.ParquetFile(file) as table:
        return cast(list[Document], table.read_row_group(group).to_pylist())


def read_documents(file: Path) -> Iterator[list[Document]]:
    """The documents of a split, a row group at a time."""
    with pq.ParquetFile(file) as table:
        for group in range(table.num_row_groups):
            yield cast(list[Document], table.read_row_group(group).to_pylist())
