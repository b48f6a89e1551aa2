"""The files that datasets of images are read from."""

import hashlib
import os
from pathlib import Path

from moray.config.schema import Idx, ImageFolder
from moray.config.splits import Split
from moray.errors import UserError


def idx_files(section: Idx) -> dict[Split, dict[str, str]]:
    """The files of each split, by their keys."""
    given: dict[Split, dict[str, str]] = {"train": section.train.model_dump()}
    return given | {"test": section.test.model_dump()} if section.test else given


def digest_of_listing(section: ImageFolder, dataset: str) -> str:
    """A digest of the names, sizes and times of the files of a folder of images.

    Raises:
        UserError: if there is no such folder.
    """
    if not Path(section.path).is_dir():
        raise UserError(
            f"datasets.{dataset}.path",
            f"got {section.path}, expected a folder with a folder of images for each class",
            "check the path; it is relative to the working directory",
        )
    digest = hashlib.sha256()
    for folder, inner, names in os.walk(section.path):
        inner.sort()
        for name in sorted(names):
            facts = os.stat(os.path.join(folder, name))
            digest.update(f"{folder}/{name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
