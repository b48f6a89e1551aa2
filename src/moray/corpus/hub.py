"""Rows of datasets on the Hugging Face Hub, at a fixed commit."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.packaged_modules.cache.cache import Cache
from datasets.table import table_cast
from datasets.utils.info_utils import verify_splits
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from moray.config.schema.datasets import HubDataset
from moray.config.splits import Split, expressions_by_split
from moray.corpus.class_labels import class_names
from moray.errors import UserError, first_line

# In a table.
_ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class LoadedRows:
    """The rows of a split expression.

    Attributes:
        tables: the rows, from the start at each call.
        features: the types of the columns.
        num_bytes: size of what is read.
    """

    tables: Callable[[], Iterator[pa.Table]]
    features: datasets.Features
    num_rows: int
    num_bytes: int


def decode(table: pa.Table, features: datasets.Features) -> datasets.Dataset:
    """The rows of a table as the library gives them to Python, such as JSON that is parsed."""
    # Computing a fingerprint takes longer than reading the rows.
    return datasets.Dataset(table, datasets.DatasetInfo(features=features), fingerprint="")


def place_of_split(repo_id: str, expressions: Mapping[Split, str], split: Split) -> str:
    """The rows of a split in errors: the repository, and the split if there are several."""
    return f"{repo_id}, {expressions[split]}" if len(expressions) > 1 else repo_id


def origin(section: HubDataset) -> dict[str, Any]:
    """The record of which rows of which commit were read."""
    keys = ("repo_id", "revision", "name", "data_dir")
    read = {key: getattr(section, key) for key in keys}
    return read | {"splits_read": expressions_by_split(section.split)}


def load(
    repo_id: str, revision: str | None, name: str | None, data_dir: str | None, split: str
) -> LoadedRows:
    """Fetch the files of a repository into the Hub's local cache, and open the rows of a split.

    Parquet is read where it is. Of files of other types, the library makes a copy that it can read.

    Gated datasets are read with the token from `hf auth login` or HF_TOKEN. The token isn't passed
    on or written anywhere. No code of the repository is run.

    Args:
        repo_id: `owner/name`, or a folder with the layout of a repository.
        revision: commit; None for a folder.
        split: split expression, such as `train`, `train[:1%]` or `train+test`.

    Raises:
        UserError: if the split can't be loaded, or the repository refers to files outside it.
    """
    if revision is not None and Path(repo_id).exists():
        # `datasets` would read the folder instead of the commit.
        raise UserError(
            repo_id,
            "the working directory has a folder of this name, which would be read instead",
            "rename the folder, or read it with source: files",
        )
    try:
        builder = datasets.load_dataset_builder(repo_id, name, data_dir=data_dir, revision=revision)
        if isinstance(builder, Cache):
            _check_copy(repo_id, revision, name or data_dir, builder)
        _check_places(repo_id, revision, builder)
        if _is_parquet(builder):
            return _open_parquet(repo_id, builder, split)
        builder.download_and_prepare()
        rows = builder.as_dataset(split=split)
        tables = partial(rows.with_format("arrow").iter, _ROWS_AT_ONCE)
        return LoadedRows(tables, rows.features, len(rows), rows.data.nbytes)
    except UserError:
        raise
    # The library's exceptions have no common base class.
    except Exception as error:
        # If reading the files fails, only the cause says why.
        generating = isinstance(error, datasets.exceptions.DatasetGenerationError)
        reason = (generating and error.__cause__) or error
        # If the Hub refuses access, the library hides its answer.
        not_found = isinstance(error, datasets.exceptions.DatasetNotFoundError)
        refusal = _refusal(repo_id) if not_found and revision else None
        raise UserError(
            repo_id,
            f"can't load split {split} at revision {revision} ({first_line(reason)})",
            "check name, revision, split, the network and, for gated datasets, `hf auth login`",
        ) from refusal or error


def _is_parquet(builder: datasets.DatasetBuilder) -> bool:
    files = [file for files in (builder.config.data_files or {}).values() for file in files]
    return bool(files) and all(str(file).endswith(".parquet") for file in files)


@dataclass(frozen=True)
class _ParquetFile:
    """A Parquet file in the Hub's cache; `url` is its place on the Hub."""

    path: str
    url: str
    schema: pa.Schema
    num_rows: int
    num_bytes: int

    def tables(self, features: datasets.Features, start: int, end: int) -> Iterator[pa.Table]:
        """The rows from one number to another, from 0; columns that the file lacks are null."""
        try:
            with pq.ParquetFile(self.path) as opened:
                number = 0
                for batch in opened.iter_batches(_ROWS_AT_ONCE):
                    skipped = max(0, start - number)
                    table = pa.Table.from_batches([batch])
                    table = table.slice(skipped, max(0, end - number - skipped))
                    number += batch.num_rows
                    if len(table):
                        yield self.cast(table, features)
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                self.url,
                f"can't read the file ({first_line(error)})",
                f"remove {os.path.realpath(self.path)}, so that it is fetched again",
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


def _open_parquet(repo_id: str, builder: datasets.DatasetBuilder, split: str) -> LoadedRows:
    """Open the rows of a repository's Parquet files, of which the library would make a copy."""
    urls = builder.config.data_files
    paths: dict[str, list[str]] = datasets.DownloadManager().download(urls)
    files = {name: [*map(_parquet_file, own, map(str, urls[name]))] for name, own in paths.items()}
    num_rows = {name: sum(file.num_rows for file in own) for name, own in files.items()}
    counted = {name: datasets.SplitInfo(name, num_examples=n) for name, n in num_rows.items()}
    verify_splits(builder.info.splits, counted)
    every = [*chain.from_iterable(files.values())]
    features = builder.info.features or datasets.Features.from_arrow_schema(every[0].schema)
    for file in every:
        file.cast(file.schema.empty_table(), features)
        _check_names(repo_id, features, file)
    instructions = datasets.ReadInstruction.from_spec(split).to_absolute(num_rows)
    slices = [
        (file, start, end)
        for one in instructions
        for file, start, end in _slices(files[one.splitname], one.from_, one.to)
    ]
    if not slices:
        raise UserError(repo_id, f"{split} has no rows", "name another slice")
    return LoadedRows(
        lambda: chain.from_iterable(
            file.tables(features, start, end) for file, start, end in slices
        ),
        features,
        sum(end - start for _, start, end in slices),
        sum(file.num_bytes * (end - start) // file.num_rows for file, start, end in slices),
    )


def _parquet_file(path: str, url: str) -> _ParquetFile:
    with pq.ParquetFile(path) as file:
        return _ParquetFile(
            path, url, file.schema_arrow, file.metadata.num_rows, os.path.getsize(path)
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


def _refusal(repo_id: str) -> HfHubHTTPError | None:
    """The Hub's refusal of access to a repository; None if it permits access."""
    try:
        HfApi().auth_check(repo_id, repo_type="dataset")
    except HfHubHTTPError as error:
        return error
    return None


def _check_places(repo_id: str, revision: str | None, builder: datasets.DatasetBuilder) -> None:
    """Refuse a repository whose card refers to files on this machine or on another server."""
    home = f"{os.path.abspath(repo_id)}/" if revision is None else "hf://datasets/"
    for files in (builder.config.data_files or {}).values():
        for file in map(str, files):
            place = file.rpartition("::")[2]
            if not (os.path.normpath(place) if revision is None else place).startswith(home):
                raise UserError(
                    repo_id,
                    f"the dataset card refers to {file}, which is outside its repository",
                    "choose another dataset",
                )


def _check_copy(
    repo_id: str, revision: str | None, configuration: str | None, builder: Cache
) -> None:
    """Refuse the library's copy of other rows, which it reads if the Hub doesn't answer."""
    if builder.hash != revision or (configuration is None and builder.config.name != "default"):
        raise UserError(
            repo_id,
            f"the Hub can't be reached (or HF_HUB_OFFLINE is set), and the copy on this machine is "
            f"{builder.config.name} of commit {builder.hash}, expected {revision}",
            "run this stage where the Hub can be reached, or fetch the files there by "
            f"`hf download --repo-type dataset {repo_id} --revision {revision}`, and read them "
            "with source: files",
        )


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


def class_names_of(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of the numbers in each column that has any."""
    return {
        column: feature.names
        for column, one in features.items()
        # Of a list, its entries'.
        if isinstance(feature := getattr(one, "feature", one), datasets.ClassLabel)
    }
