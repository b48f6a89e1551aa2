"""Rows of datasets on the Hugging Face Hub, at a fixed commit."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from datasets.packaged_modules.cache.cache import Cache
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from moray.config.schema.datasets import HubDataset
from moray.config.splits import Split, expressions_by_split
from moray.corpus.hub_parquet import open_parquet
from moray.corpus.loaded_rows import ROWS_AT_ONCE, LoadedRows
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
            return open_parquet(repo_id, builder, split)
        builder.download_and_prepare()
        rows = builder.as_dataset(split=split)
        tables = partial(rows.with_format("arrow").iter, ROWS_AT_ONCE)
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
            "the Hub can't be reached (or HF_HUB_OFFLINE is set), and this machine has a copy of "
            f"commit {builder.hash} (configuration {builder.config.name}), not of {revision}",
            "run this stage where the Hub can be reached, or fetch the files there by "
            f"`hf download --repo-type dataset {repo_id} --revision {revision}`, and read them "
            "with source: files",
        )
