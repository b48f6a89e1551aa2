"""A digest that tells whether the files of a folder have changed."""

import hashlib
import os
from pathlib import Path

from moray.errors import UserError


def digest_of_listing(folder: str, key: str) -> str:
    """A digest of the names, sizes and times of the files of a folder of images.

    Args:
        folder: the folder.
        key: path of the key that names it, for the error.

    Raises:
        UserError: if there is no such folder.
    """
    if not Path(folder).is_dir():
        raise UserError(
            key,
            f"got {folder}, expected a folder with a folder of images for each class",
            "check the path; it is relative to the working directory",
        )
    digest = hashlib.sha256()
    for inside, inner, names in os.walk(folder):
        inner.sort()
        for name in sorted(names):
            facts = os.stat(os.path.join(inside, name))
            digest.update(f"{inside}/{name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
