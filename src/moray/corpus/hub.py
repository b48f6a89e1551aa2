"""Rows of datasets on the Hugging Face Hub, at a fixed commit."""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pyarrow.parquet as pq
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from moray.config.schema.datasets import HubDataset
from moray.config.splits import Split, expressions_by_split
from moray.corpus.class_labels import class_names
from moray.errors import UserError, first_line


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
) -> datasets.Dataset:
    """Load the rows of a split expression into the Hub's local cache.

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
        _check_places(repo_id, revision, builder)
        builder.download_and_prepare()
        _check_names(repo_id, builder)
        return builder.as_dataset(split=split)
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


def _check_names(repo_id: str, builder: datasets.DatasetBuilder) -> None:
    """Refuse Parquet files that name the same numbers differently, which the library overlooks."""
    names_by_column = _names_in(builder.info.features or {})
    files = builder.config.data_files if names_by_column else None
    for file in chain.from_iterable((files or {}).values()):
        if not str(file).endswith(".parquet"):
            continue
        with fsspec.open(str(file)) as opened_file:
            own = class_names(pq.read_schema(opened_file))
        for column in names_by_column.keys() & own.keys():
            numbers = {name: number for number, name in enumerate(names_by_column[column])}
            for number, name in enumerate(own[column]):
                if numbers.get(name, number) != number:
                    raise UserError(
                        repo_id,
                        f"{name} in column {column} is number {number} in {file}, and "
                        f"{numbers[name]} in the dataset's description",
                        "download the files and read them with source: files, which goes by names",
                    )


def class_names_of(rows: datasets.Dataset) -> dict[str, list[str]]:
    """The names of the numbers in each column that has any."""
    return _names_in(rows.features)


def _names_in(features: Mapping[str, Any]) -> dict[str, list[str]]:
    return {
        column: feature.names
        for column, one in features.items()
        # Of a list, its entries'.
        if isinstance(feature := getattr(one, "feature", one), datasets.ClassLabel)
    }
