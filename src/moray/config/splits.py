"""Splits: keys with a value for each, and files and folders that are named after them."""

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Literal, cast

from pydantic import BaseModel

from moray.config.folders import folder_names
from moray.errors import UserError

Split = Literal["train", "validation", "test"]

# Words for splits in names of files and folders, as in the library `datasets`, in any case.
_WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_SPLITS: tuple[Split, ...] = ("train", "validation", "test")
_COMPRESSED = re.compile(r"\.(gz|zst)$")


def folders_by_split(path: str) -> dict[Split, Path]:
    """The folder of each split that has its own; one without splits is for train.

    If a split has several, the first by the order of the words for it. A word of a longer name, as
    in `training_set`, counts if all folders have such names. A folder without folders in it, such
    as a class `train` beside `bus`, counts only if another folder is named after a split.
    """
    whole = Path(path)
    folders = [whole / name for name in folder_names(whole)] if whole.is_dir() else []
    by_parts = {folder: _split_of_parts(folder.name) for folder in folders}
    all_named = len(set(by_parts.values())) > 1 and all(by_parts.values())
    candidates: dict[Split, list[Path]] = {}
    for folder, split in by_parts.items():
        if split and (all_named or folder.name.lower() in _WORDS):
            candidates.setdefault(split, []).append(folder)
    train = candidates.get("train", [])
    if not train or (len(candidates) == 1 and not any(map(_has_folders, train))):
        return {"train": whole}
    order = [*_WORDS]

    def place(folder: Path) -> int:
        name = folder.name.lower()
        return order.index(name) if name in order else len(order)

    return {split: min(candidates[split], key=place) for split in _SPLITS if split in candidates}


def _has_folders(folder: Path) -> bool:
    return any(entry.is_dir() for entry in os.scandir(folder) if not entry.name.startswith("."))


def _split_of_parts(name: str) -> Split | None:
    """The split in the first or the last word of a name, as in `training_set`."""
    parts = re.split(r"[-_. ]+", name)
    return split_of(parts[0]) or split_of(parts[-1])


def check_unmixed(files: Sequence[str], pattern: str, key: str, path: str) -> None:
    """Refuse files of several splits that one folder or glob stands for.

    Args:
        key: the key of the dataset that has the pattern.
        path: where an error is.

    Raises:
        UserError: if their names say that they are of several splits.
    """
    if len(files) < 2:
        return
    common = os.path.commonpath([os.path.dirname(file) for file in files])
    names = [os.path.relpath(file, common) for file in files]
    by_split: dict[Split, list[str]] = {}
    for file, name in zip(files, names, strict=True):
        if split := _split_of_file(name):
            by_split.setdefault(split, []).append(file)
    num_named = sum(map(len, by_split.values()))
    # Whole documents have any names, such as training_notes.txt and test_plan.txt.
    texts = any(_COMPRESSED.sub("", name.lower()).endswith(".txt") for name in names)
    if len(by_split) < 2 or (texts and num_named < len(files)):
        return
    first = ", ".join(
        os.path.relpath(by_split[split][0], common) for split in _SPLITS if split in by_split
    )
    examples = {split: _example(by_split[split]) for split in _SPLITS if split in by_split}
    example = ", ".join(f"{split}: {one}" for split, one in ({"train": "…"} | examples).items())
    raise UserError(
        path,
        f"{pattern} has files named after splits ({first}), whose rows would be mixed",
        f"give {key}: {{{example}}}, or list the files to mix them",
    )


def _example(files: list[str]) -> str:
    return files[0] if len(files) == 1 else f"[{files[0]}, …]"


def split_of(word: str) -> Split | None:
    """The split that a word stands for, such as the name of a folder; None for others."""
    return _WORDS.get(word.lower())


def _split_of_file(name: str) -> Split | None:
    """The split in the name of a file, or else in that of the closest folder."""
    file = PurePath(_COMPRESSED.sub("", name.lower()))
    folders = (split_of(folder.name) for folder in file.parents)
    return _split_of_parts(file.stem) or next(filter(None, folders), None)


def paths_by_split(locations: str | list[str] | BaseModel) -> dict[Split, list[str]]:
    """The paths, globs or URLs of each split that has its own."""
    values = _by_split(locations)
    return {split: [one] if isinstance(one, str) else one for split, one in values.items()}


def expressions_by_split(expression: str | BaseModel) -> dict[Split, str]:
    """The split expression of each split that has its own."""
    return cast(dict[Split, str], _by_split(expression))


def idx_files_by_split(train: BaseModel, test: BaseModel | None) -> dict[Split, dict[str, str]]:
    """The IDX files of each split that has its own, by the keys that name them."""
    sections: dict[Split, BaseModel | None] = {"train": train, "test": test}
    return {split: files.model_dump() for split, files in sections.items() if files}


def _by_split(value: str | list[str] | BaseModel) -> dict[Split, str | list[str]]:
    """A single value is for train; a section has a key for each split."""
    if not isinstance(value, BaseModel):
        return {"train": value}
    return {cast(Split, split): one for split, one in value if one is not None}
