"""Rows of Parquet files on the Hub, of which only those that have the rows of a split are fetched.

The library would fetch all, and make a copy of them.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.table import table_cast

from moray.corpus.class_labels import class_names
from moray.corpus.loaded_rows import ROWS_AT_ONCE, LoadedRows, class_names_of
from moray.errors import UserError, first_line

# To the Hub.
_REQUESTS_AT_ONCE = 16


@dataclass(frozen=True)
class _ParquetFile:
    """A Parquet file on the Hub, or in a folder."""

    url: str
    schema: pa.Schema
    num_rows: int
    num_bytes: int

    @classmethod
    def at(cls, url: str) -> "_ParquetFile":
        """Read what the end of a file says, without fetching the rest."""
        with fsspec.open(url) as opened, pq.ParquetFile(opened) as file:
            return cls(url, file.schema_arrow, file.metadata.num_rows, opened.size)

    def tables(
        self, path: str, features: datasets.Features, start: int, end: int
    ) -> Iterator[pa.Table]:
        """The rows from one number to another, from 0; columns that the file lacks are null.

        Args:
            path: where it was fetched to.
        """
        try:
            with pq.ParquetFile(path) as opened:
                number = 0
                for batch in opened.iter_batches(ROWS_AT_ONCE):
                    skipped = max(0, start - number)
                    table = pa.Table.from_batches([batch])
                    table = table.slice(skipped, max(0, end - number - skipped))
                    number += batch.num_rows
                    if len(table):
                        yield self.cast(table, features)
                    if number >= end:
                        break
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                self.url,
                f"can't read the file ({first_line(error)})",
                f"remove {os.path.realpath(path)}, so that it is fetched again",
            ) from error

    def cast(self, table: pa.Table, features: datasets.Features) -> pa.Table:
        """Some rows with the columns of the dataset.

        Raises:
            UserError: if the file has other columns, or values that aren't of their types.
        """
        try:
            return table_cast(table, features.arrow_schema)
        except (TypeError, ValueError, pa.ArrowException) as error:
            own = {field.name: str(field.type) for field in self.schema}
            wanted = {field.name: str(field.type) for field in features.arrow_schema}
            differing = [
                f"{name}: {kind}" for name, kind in own.items() if wanted.get(name) != kind
            ]
            raise UserError(
                self.url,
                "can't read columns as those of the dataset's card or first file "
                f"({', '.join(differing) or first_line(error)})",
                "download the files and read them with source: files, which takes each as it is",
            ) from error


class _ParquetSplits(Mapping[str, int]):
    """The number of rows of each split; only the files of those that are asked for are looked at.

    A repository may have thousands of files.
    """

    def __init__(self, repo_id: str, builder: datasets.DatasetBuilder) -> None:
        self._repo_id, self._builder = repo_id, builder
        self._urls = {name: [*map(str, own)] for name, own in builder.config.data_files.items()}
        self.files: dict[str, list[_ParquetFile]] = {}
        first = next(iter(self._urls.values()))[0]
        self.features = builder.info.features or datasets.Features.from_arrow_schema(
            _ParquetFile.at(first).schema
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._urls)

    def __len__(self) -> int:
        return len(self._urls)

    def __getitem__(self, split: str) -> int:
        if split not in self.files:
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
                files = self.files[split] = [*threads.map(_ParquetFile.at, self._urls[split])]
            for file in files:
                file.cast(file.schema.empty_table(), self.features)
                _check_names(self._repo_id, self.features, file)
            self._check_number(split)
        return sum(file.num_rows for file in self.files[split])

    def _check_number(self, split: str) -> None:
        expected = (self._builder.info.splits or {}).get(split)
        if expected and expected.num_examples != self[split]:
            raise UserError(
                self._repo_id,
                f"got {self[split]:,} rows in the files of {split}, and the dataset card says "
                f"{expected.num_examples:,}",
                "choose a revision whose card and files are of one state, or download the files "
                "and read them with source: files",
            )


def open_parquet(repo_id: str, builder: datasets.DatasetBuilder, split: str) -> LoadedRows:
    """Fetch the Parquet files that have rows of a split, of which the library would make a copy."""
    splits = _ParquetSplits(repo_id, builder)
    slices = [
        (file, start, end)
        for one in datasets.ReadInstruction.from_spec(split).to_absolute(splits)
        for file, start, end in _slices(splits.files[one.splitname], one.from_, one.to)
    ]
    if not slices:
        raise UserError(repo_id, f"{split} has no rows", "name another slice")
    urls = [*dict.fromkeys(file.url for file, _, _ in slices)]
    paths = dict(zip(urls, datasets.DownloadManager().download(urls), strict=True))
    return LoadedRows(
        lambda: chain.from_iterable(
            file.tables(paths[file.url], splits.features, start, end) for file, start, end in slices
        ),
        splits.features,
        sum(end - start for _, start, end in slices),
        sum(file.num_bytes * (end - start) // file.num_rows for file, start, end in slices),
    )


def _slices(
    files: Iterable[_ParquetFile], start: int, end: int
) -> Iterator[tuple[_ParquetFile, int, int]]:
    """The rows of each file that are between two numbers, counted over all files."""
    first = 0
    for file in files:
        own_start, own_end = max(0, start - first), min(file.num_rows, end - first)
        if own_start < own_end:
            yield file, own_start, own_end
        first += file.num_rows


def _check_names(repo_id: str, features: Mapping[str, Any], file: _ParquetFile) -> None:
    """Refuse a file that names the same numbers differently, which the library overlooks.

    Args:
        features: those of the dataset.
    """
    names_by_column, own = class_names_of(features), class_names(file.schema)
    for column in names_by_column.keys() & own.keys():
        numbers = {name: number for number, name in enumerate(names_by_column[column])}
        for number, name in enumerate(own[column]):
            if numbers.get(name, number) != number:
                raise UserError(
                    repo_id,
                    f"{name} in column {column} is number {number} in {file.url}, and "
                    f"{numbers[name]} in the dataset's description",
                    "download the files and read them with source: files, which goes by names",
                )
