"""Write a dataset: its splits from tables of rows, and the file that describes it."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from moray.config.tasks import FORMATS, FormatName
from moray.corpus.dataset import SPLITS
from moray.errors import UserError
from moray.provenance.manifest import DATASET, sha256_file, write_json

# A row group is a window of later stages, and is in memory as a whole. Rows of a few bytes cost
# much more as Python objects than as text.
_GROUP_BYTES = 4 * 2**20
_GROUP_ROWS = 2**16


class SplitFacts(TypedDict):
    """What `dataset.json` says of a split."""

    rows: int
    bytes: int
    sha256: str


def schema_of(format: FormatName, keep_groups: bool = True) -> pa.Schema:
    """The columns of a dataset.

    Args:
        keep_groups: whether later stages need the groups; some are as large as the images.
    """
    columns, types = FORMATS[format].kept, FORMATS[format].types
    if keep_groups:
        columns = (*columns, "group")
    return pa.schema(
        [(column, pa.type_for_alias(types.get(column, "string"))) for column in columns]
    )


class DatasetWriter:
    """Writes `train.parquet`, `validation.parquet` and `test.parquet`."""

    def __init__(self, folder: Path, format: FormatName, keep_groups: bool = True) -> None:
        self._folder, self._format = folder, format
        (folder / DATASET).unlink(missing_ok=True)
        schema = schema_of(format, keep_groups)
        # Parquet encodes without Python's lock, and takes most of the time.
        self._encoder = ThreadPoolExecutor(1)
        self._splits = {
            split: _SplitWriter(folder / f"{split}.parquet", schema, self._encoder)
            for split in SPLITS
        }
        self._rows = self._spoken = 0

    def add(self, split: str, rows: pa.Table, sizes: NDArray[np.int64]) -> None:
        """Append rows to a split.

        Args:
            rows: with the columns of the dataset, and maybe others.
            sizes: number of bytes of each row, shape (rows,).
        """
        self._splits[split].add(rows, sizes)
        self._rows += len(rows)
        if FORMATS[self._format].answered:
            self._spoken += rows["prompt"].null_count

    def close(self) -> dict[str, SplitFacts]:
        """Finish the files.

        Raises:
            UserError: if some answers are text and others messages.
        """
        if 0 < self._spoken < self._rows:
            raise UserError(
                f"datasets.{self._folder.name}",
                "got some rows as text and others as messages, expected all of one kind",
                "convert them, or make two datasets",
            )
        facts = {split: writer.close() for split, writer in self._splits.items()}
        self._encoder.shutdown()
        return facts


def describe(
    folder: Path,
    format: FormatName,
    splits: Mapping[str, SplitFacts],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Write `dataset.json`, and return its content.

    Args:
        facts: where the dataset is from, and what else is known about it.
    """
    description = {**facts, "format": format, "splits": splits}
    write_json(folder / DATASET, description)
    return description


class _SplitWriter:
    def __init__(self, path: Path, schema: pa.Schema, encoder: ThreadPoolExecutor) -> None:
        self._path, self._rows, self._bytes = path, 0, 0
        self._encoder = encoder
        self._encoding: Future[None] | None = None
        self._file = pq.ParquetWriter(path, schema)
        self._columns = schema.names
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0

    def add(self, rows: pa.Table, sizes: NDArray[np.int64]) -> None:
        rows = rows.select(self._columns)
        self._rows += len(rows)
        self._bytes += int(sizes.sum())
        ends = np.cumsum(sizes)
        start = taken = 0
        while start < len(rows):
            # The row that fills the group is in it.
            room = _GROUP_BYTES - self._waiting_bytes
            filled = int(np.searchsorted(ends, taken + room)) + 1
            end = min(filled, start + _GROUP_ROWS - self._waiting_rows, len(rows))
            self._waiting.append(rows.slice(start, end - start))
            self._waiting_rows += end - start
            self._waiting_bytes += int(ends[end - 1]) - taken
            start, taken = end, int(ends[end - 1])
            if self._waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
                self._flush()

    def close(self) -> SplitFacts:
        if self._waiting:
            self._flush()
        self._wait()
        self._file.close()
        return {"rows": self._rows, "bytes": self._bytes, "sha256": sha256_file(self._path)}

    def _flush(self) -> None:
        # One group is encoded while the next one is collected.
        self._wait()
        self._encoding = self._encoder.submit(self._encode, pa.concat_tables(self._waiting))
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0

    def _wait(self) -> None:
        if self._encoding:
            self._encoding.result()

    def _encode(self, rows: pa.Table) -> None:
        self._file.write_table(rows.combine_chunks(), row_group_size=len(rows))
