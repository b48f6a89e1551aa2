"""Files on web servers and in object stores, brought here through fsspec."""

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
from fsspec.callbacks import TqdmCallback
from tqdm import tqdm

from moray.console import terminal
from moray.errors import UserError, first_line
from moray.provenance.digest import sha256_file
from moray.provenance.space import check_space, of_full_disk

# What an object store doesn't take for part of a name.
_MAGIC = set("*?[")


def fetch(urls: list[str], folder: Path, sha256: str | None = None) -> dict[str, Path]:
    """Bring files into a folder.

    Credentials are the file system's own: environment variables, or its configuration files.

    Args:
        urls: of files; in an object store, globs too.
        folder: where they go, each in a folder of its own.
        sha256: what the file must have, where there is just one.

    Returns:
        The files, each under its URL without secrets.

    Raises:
        UserError: if a URL can't be read, matches nothing, or gives a file of another digest.
    """
    fetched: dict[str, Path] = {}
    for url in urls:
        try:
            files, remote = _found(url)
            for name in remote:
                full = public(str(files.unstrip_protocol(name)))
                if full in fetched:
                    continue
                # Names of web servers come whole, with what may follow the path.
                path = urlsplit(name).path if "://" in name else name
                if Path(path).name in ("", ".."):
                    raise UserError(full, "got no name of a file", "name the file in the URL")
                target = folder / f"{len(fetched):05d}" / Path(path).name
                target.parent.mkdir(parents=True)
                check_space(folder, files.size(name) or 0)
                files.get_file(name, str(target), callback=_progress(target.name))
                if not target.is_file():
                    raise UserError(full, "got a folder, expected a file", "name its files")
                fetched[full] = target
        except UserError:
            raise
        # Each file system has exceptions of its own.
        except Exception as error:
            if of_full_disk(error):
                raise
            raise UserError(
                public(url),
                f"got no file ({first_line(error).replace(url, public(url))})",
                "check the URL, the network and your credentials",
                # With its cause, the trace in the log would have the whole URL.
            ) from (error if public(url) == url else None)
    if sha256 is not None:
        url, file = next(iter(fetched.items()))
        if len(fetched) > 1:
            raise UserError(
                public(urls[0]),
                f"got {len(fetched)} files, expected one of sha256 {sha256}",
                "name it",
            )
        if (found := sha256_file(file)) != sha256:
            raise UserError(
                url, f"got a file of sha256 {found}, expected {sha256}", "check the URL or sha256"
            )
    return fetched


def public(url: str) -> str:
    """A URL without what may be secret in it: who asks, and a signature in its query.

    A digest stands for the query, which can be all that sets two files apart.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return url
    query = hashlib.sha256(parts.query.encode()).hexdigest()[:8] if parts.query else ""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query).geturl()


def _found(url: str) -> tuple[fsspec.AbstractFileSystem, list[str]]:
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        # It names the package to install, or the protocols that there are.
        raise UserError(
            public(url), f"got a URL that can't be opened ({first_line(error)})", "check it"
        ) from error
    # A web server lists nothing, and `?` begins a query there.
    if urlsplit(url).scheme in ("http", "https") or _MAGIC.isdisjoint(path):
        return files, [path]
    found = files.glob(path, detail=True)
    matches = sorted(name for name in found if found[name]["type"] == "file")
    if not matches:
        raise UserError(url, "got a glob that matches no file", "check the URL")
    return files, matches


def _progress(name: str) -> TqdmCallback:
    shown = {
        "desc": name,
        "unit": "B",
        "unit_scale": True,
        "file": terminal(),
        "disable": not terminal().isatty(),
    }
    return TqdmCallback(tqdm_kwargs=shown, tqdm_cls=tqdm)
