"""The files and folders of a folder of the user's."""

import os
from collections.abc import Iterator
from pathlib import Path

from moray.errors import UserError

# What macOS adds to archives: a hidden file for each file in them.
OF_ARCHIVES = "__MACOSX"


def folder_names(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted, without hidden ones and `OF_ARCHIVES`."""
    names = [entry.name for entry in _visible(folder) if entry.is_dir()]
    return [name for name in names if name != OF_ARCHIVES]


def files_below(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """All files below a folder, in order, also those in folders that links lead to.

    Hidden files and folders are left out.

    Raises:
        UserError: if a link leads nowhere, or back to a folder that contains it.
    """
    return _below(os.fspath(folder), ())


def _below(folder: str, above: tuple[str, ...]) -> Iterator[os.DirEntry[str]]:
    real = os.path.realpath(folder)
    if real in above:
        raise UserError(folder, "is a link to a folder that it is in", "remove the link")
    for entry in _visible(folder):
        if entry.is_dir():
            yield from _below(entry.path, (*above, real))
        elif entry.is_symlink() and not os.path.exists(entry.path):
            raise UserError(
                entry.path,
                f"is a link to {os.readlink(entry.path)}, which doesn't exist",
                "fetch what it leads to, or remove it",
            )
        else:
            yield entry


def _visible(folder: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    for entry in visible:
        check_name(entry.path, ascii(os.fspath(folder))[1:-1])
    return sorted(visible, key=lambda entry: entry.name)


def check_name(path: str, key: str) -> None:
    """Check that the name of a file is text, which those from old archives may not be.

    Raises:
        UserError: if it isn't.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            key, f"the name of {os.fsencode(path)!r} isn't UTF-8", "rename the file"
        ) from error
