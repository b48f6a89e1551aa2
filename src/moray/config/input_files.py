"""The user's files that are inputs of rules."""

import os
import time
from datetime import datetime
from glob import escape, glob, has_magic
from pathlib import Path

from moray.config.folders import check_name
from moray.config.inputs import CHECK_PATH
from moray.config.schema.datasets import Dataset, LocalFiles
from moray.config.splits import check_unmixed
from moray.config.tasks import FORMATS
from moray.errors import UserError

# Files in which the library `datasets` describes rows that are in others; and those of a folder
# that it reads alone.
_DESCRIPTIONS = {"dataset_info.json", "dataset_infos.json"}
_SAVED = {"state.json", "dataset_dict.json"}
# Seconds by which clocks of machines that share files may differ.
_CLOCK_SKEW = 60


def endings_of(section: Dataset) -> tuple[str, ...]:
    """The endings of the files that a folder stands for; none if it stands for none."""
    if not isinstance(section, LocalFiles):
        return ()
    return FORMATS[section.format].endings


def input_files(path: str, key: str, endings: tuple[str, ...]) -> list[str]:
    """The files that a path or glob matches, or those in a folder that have one of the endings.

    A path without wildcards may not be there yet.

    Raises:
        UserError: if there are none, one is a link that leads nowhere, or they are of several
            splits by their names.
    """
    folder = bool(endings) and Path(path).is_dir()
    paths = glob(_pattern(str(Path(path, "*")) if folder else path), recursive=True)
    if folder:
        paths = _rows_in(path, paths, key, endings)
    matches = sorted(match for match in paths if not Path(match).is_dir())
    if dangling := next((match for match in matches if not Path(match).exists()), None):
        raise UserError(
            key,
            f"{dangling} is a link to {os.readlink(dangling)}, which doesn't exist",
            "fetch what it leads to, or remove it",
        )
    if folder and not matches:
        raise UserError(
            key,
            f"the folder {path} has no file of a type that is read",
            "check the path, or give a glob of the files in its folders",
        )
    if not matches and not has_magic(path) and not Path(path).exists():
        # Another workflow's rule may make it.
        matches = [path]
    if not matches:
        raise UserError(key, f"no file matches {path}", CHECK_PATH)
    check_unmixed(matches, path, key.rpartition(".")[2], key)
    return [input_file(match, key) for match in matches]


def _rows_in(folder: str, files: list[str], key: str, endings: tuple[str, ...]) -> list[str]:
    """The files of a folder that may have rows: not those in which `datasets` describes it."""
    names = {Path(file).name: file for file in files}
    if marks := _SAVED & names.keys():
        raise UserError(
            key,
            f"{folder} was written by save_to_disk of the datasets library (it has {min(marks)}), "
            "which is not read",
            "write it as Parquet: datasets.load_from_disk(…).to_parquet(…), for each split",
        )
    return [
        file
        for name, file in names.items()
        if name.lower().endswith(endings) and name not in _DESCRIPTIONS
    ]


def _pattern(path: str) -> str:
    """A path as a glob in which the names that are there, such as `data [v2]`, mean themselves."""
    whole, parts = Path(), []
    for part in Path(path).parts:
        whole /= part
        parts.append(escape(part) if os.path.lexists(whole) else part)
    return str(Path(*parts))


def input_file(path: str, key: str) -> str:
    """The path of a rule's input file.

    Raises:
        UserError: if Snakemake can't write it, would read a part of it as a wildcard, or will
            refuse its results.
    """
    check_name(path, key)
    if {"{", "}"} & set(path):
        raise UserError(
            key,
            f"{path} contains braces, which Snakemake reads as wildcards",
            "rename the file",
        )
    mtime = os.stat(path).st_mtime if os.path.exists(path) else 0.0
    if mtime > time.time() + _CLOCK_SKEW:
        raise UserError(
            key,
            f"the time of {path}, {datetime.fromtimestamp(mtime):%Y-%m-%d %H:%M}, is in the "
            "future, so all results would be older than it",
            "run touch on the file, or set the clock",
        )
    return path
