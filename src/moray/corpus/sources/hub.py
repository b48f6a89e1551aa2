"""A dataset of the Hugging Face hub, at a commit."""

import os
from collections.abc import Iterator
from pathlib import Path

import datasets

from moray.corpus.document import Document, RowError
from moray.corpus.formats import Shape, document, without_nulls
from moray.errors import UserError, first_line


def load(
    repo_id: str, revision: str | None, name: str | None, data_dir: str | None, split: str
) -> datasets.Dataset:
    """The rows of a split expression, in the hub's local cache.

    Gated datasets are read with the token that `hf auth login` or HF_TOKEN gives the hub's
    library; it isn't passed on or written anywhere. No code of the repository is run.

    Args:
        repo_id: `owner/name`, or a folder laid out like a repository.
        revision: commit; None for a folder.
        name: configuration.
        data_dir: folder inside the repository.
        split: `train`, `train[:1%]`, `train+test`.

    Raises:
        UserError: if the hub doesn't give it, or the repository names files that aren't its own.
    """
    if revision is not None and Path(repo_id).exists():
        # `datasets` would read it in place of the commit.
        raise UserError(
            repo_id,
            "got a folder of this name in the working directory, expected the hub's alone",
            "rename it, or read it with source: files",
        )
    try:
        builder = datasets.load_dataset_builder(repo_id, name, data_dir=data_dir, revision=revision)
        _check_places(repo_id, revision, builder)
        builder.download_and_prepare()
        return builder.as_dataset(split=split)
    except UserError:
        raise
    # The library has no common base of its exceptions.
    except Exception as error:
        # What went wrong while it read the files, it tells only as a cause.
        generating = isinstance(error, datasets.exceptions.DatasetGenerationError)
        told = (generating and error.__cause__) or error
        raise UserError(
            repo_id,
            f"got no split {split} at revision {revision} ({first_line(told)})",
            "check name, revision, split, the network and, for gated datasets, `hf auth login`",
        ) from error


def _check_places(repo_id: str, revision: str | None, builder: datasets.DatasetBuilder) -> None:
    """Refuse a repository whose card names files of this machine, or of a server's."""
    home = f"{os.path.abspath(repo_id)}/" if revision is None else "hf://datasets/"
    for files in (builder.config.data_files or {}).values():
        for file in map(str, files):
            place = file.rpartition("::")[2]
            if not (os.path.normpath(place) if revision is None else place).startswith(home):
                raise UserError(
                    repo_id,
                    f"got a dataset card that names {file}, expected files of its repository",
                    "choose another dataset",
                )


def documents(repo_id: str, rows: datasets.Dataset, shape: Shape) -> Iterator[Document]:
    """The documents of what was loaded.

    Raises:
        UserError: naming the row that is no document.
    """
    for number, row in enumerate(rows, 1):
        try:
            yield document(without_nulls(row), shape)
        except RowError as error:
            raise UserError(f"{repo_id}, row {number}", error.problem, error.remedy) from error
