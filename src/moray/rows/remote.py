"""Copy a store to an object store, from which workers stream it."""

from pathlib import Path

import fsspec

from moray.console import say
from moray.errors import UserError, first_line
from moray.provenance.manifest import MANIFEST


def copy_to(store: Path, url: str) -> str:
    """Copy a store's files to a URL, the manifest last, unless the same store is there already.

    Returns:
        The copy's URL.

    Raises:
        UserError: if the object store can't be read or written.
    """
    copy = f"{url.rstrip('/')}/{store.name}"
    manifest = (store / MANIFEST).read_bytes()
    try:
        files, path = fsspec.core.url_to_fs(copy)
        if files.exists(f"{path}/{MANIFEST}"):
            if files.cat_file(f"{path}/{MANIFEST}") == manifest:
                return copy
            files.rm(path, recursive=True)
        say(f"copying {store} to {copy}")
        for file in sorted(file for file in store.iterdir() if file.is_file()):
            if file.name != MANIFEST:
                files.put_file(str(file), f"{path}/{file.name}")
        files.pipe_file(f"{path}/{MANIFEST}", manifest)
    # Each file system has its own exceptions.
    except Exception as error:
        raise UserError(
            "data.stream_from",
            f"can't write to {url} ({first_line(error)})",
            "check the URL, the network and your credentials",
        ) from error
    return copy
