"""Download files from web servers and object stores with fsspec."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
from fsspec.callbacks import TqdmCallback
from tqdm import tqdm

from moray.config.schema.datasets import Url
from moray.config.splits import check_unmixed, paths_by_split
from moray.console import terminal
from moray.corpus.sources import OpenSource
from moray.errors import UnreachableError, UserError, first_line
from moray.provenance.manifest import sha256_file
from moray.provenance.space import check_space, is_full_disk
from moray.tasks.language.sources.files import open_files

# Characters that make a path in an object store a glob.
_MAGIC = set("*?[")


def open_source(section: Url, files: Mapping[str, list[str]], temporary: Path) -> OpenSource:
    """Download the files of each split and open them."""
    by_split: dict[str, dict[str, Path]] = {
        split: fetch(urls, temporary / split, section.sha256)
        for split, urls in paths_by_split(section.url).items()
    }
    return open_files(section, by_split)


def fetch(urls: list[str], folder: Path, sha256: str | None = None) -> dict[str, Path]:
    """Download files into a folder that doesn't have them; returns them by URLs without secrets.

    Credentials come from the file system's environment variables or configuration files.

    Args:
        urls: URLs of files; for an object store, globs too.
        sha256: expected digest, if there is a single file.

    Raises:
        UnreachableError: if a URL can't be read.
        UserError: if it matches nothing, or a file has another digest.
    """
    targets: dict[str, Path] = {}
    for url in urls:
        try:
            files, remote = _find(url)
            check_unmixed([str(files.unstrip_protocol(name)) for name in remote], url, "url", url)
            for name in remote:
                full = public(str(files.unstrip_protocol(name)))
                if full in targets:
                    continue
                # On web servers, names are full URLs, which may have a query after the path.
                path = urlsplit(name).path if "://" in name else name
                if Path(path).name in ("", ".."):
                    raise UserError(full, "the URL has no file name", "give the URL of a file")
                target = folder / f"{len(targets):05d}" / Path(path).name
                targets[full] = target
                if target.is_file():
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                check_space(folder, files.size(name) or 0)
                part = target.with_name(f"{target.name}.part")
                files.get_file(name, str(part), callback=_progress(target.name))
                if not part.is_file():
                    raise UserError(full, "got a folder, expected a file", "list its files")
                part.replace(target)
        except UserError:
            raise
        # Each file system has its own exceptions.
        except Exception as error:
            if is_full_disk(error):
                raise
            raise UnreachableError(
                public(url),
                f"can't read the file ({first_line(error).replace(url, public(url))})",
                "check the URL, the network and your credentials",
                # With its cause, the log would contain the URL with its secrets.
            ) from (error if public(url) == url else None)
    if sha256 is not None:
        url, file = next(iter(targets.items()))
        if len(targets) > 1:
            raise UserError(
                public(urls[0]),
                f"got {len(targets)} files, expected a single one with sha256 {sha256}",
                "give the URL of one file",
            )
        if (digest := sha256_file(file)) != sha256:
            raise UserError(
                url,
                f"got a file with sha256 {digest}, expected {sha256}",
                "check the URL or sha256",
            )
    return targets


def public(url: str) -> str:
    """Remove possible secrets from a URL: the credentials, and the query, which may be a signature.

    A digest replaces the query, because two files may differ in nothing else.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return url
    query = hashlib.sha256(parts.query.encode()).hexdigest()[:8] if parts.query else ""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query).geturl()


def _find(url: str) -> tuple[fsspec.AbstractFileSystem, list[str]]:
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        # The error names the package to install, or the known protocols.
        raise UserError(
            public(url), f"can't open the URL ({first_line(error)})", "check it"
        ) from error
    # Web servers can't list files, and `?` begins a query in their URLs.
    if urlsplit(url).scheme in ("http", "https") or _MAGIC.isdisjoint(path):
        return files, [path]
    entries = files.glob(path, detail=True)
    matches = sorted(name for name in entries if entries[name]["type"] == "file")
    if not matches:
        raise UserError(url, "the glob matches no files", "check the URL")
    return files, matches


def _progress(name: str) -> TqdmCallback:
    options = {
        "desc": name,
        "unit": "B",
        "unit_scale": True,
        "file": terminal(),
        "disable": not terminal().isatty(),
    }
    return TqdmCallback(tqdm_kwargs=options, tqdm_cls=tqdm)
