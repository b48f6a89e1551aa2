"""Files that are named after splits, as in repositories of datasets."""

import os
import re
from collections.abc import Sequence
from pathlib import PurePath

from moray.config.splits import Split
from moray.errors import UserError

# What the library `datasets` calls them in names of files and folders, in any case.
_WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_SPLITS: tuple[Split, ...] = ("train", "validation", "test")
_COMPRESSED = re.compile(r"\.(gz|zst)$")


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
    found: dict[Split, list[str]] = {}
    for file, name in zip(files, names, strict=True):
        if split := _split_of_file(name):
            found.setdefault(split, []).append(file)
    named = sum(map(len, found.values()))
    # Whole documents have any names, such as training_notes.txt and test_plan.txt.
    texts = any(_COMPRESSED.sub("", name.lower()).endswith(".txt") for name in names)
    if len(found) < 2 or (texts and named < len(files)):
        return
    first = ", ".join(
        os.path.relpath(found[split][0], common) for split in _SPLITS if split in found
    )
    given = {split: _given(found[split]) for split in _SPLITS if split in found}
    listed = ", ".join(f"{split}: {one}" for split, one in ({"train": "…"} | given).items())
    raise UserError(
        path,
        f"{pattern} has files named after splits ({first}), whose rows would be mixed",
        f"give {key}: {{{listed}}}, or list the files to mix them",
    )


def _given(files: list[str]) -> str:
    return files[0] if len(files) == 1 else f"[{files[0]}, …]"


def split_of(word: str) -> Split | None:
    """The split that a word stands for, such as the name of a folder; None for others."""
    return _WORDS.get(word.lower())


def _split_of_file(name: str) -> Split | None:
    """The split that a file's name says, or else that of the closest folder."""
    file = PurePath(_COMPRESSED.sub("", name.lower()))
    parts = re.split(r"[-_.]+", file.stem)
    words = (parts[0], parts[-1], *(folder.name for folder in file.parents))
    return next((split for word in words if (split := split_of(word))), None)
