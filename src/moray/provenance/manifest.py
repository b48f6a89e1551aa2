"""Manifests: the size and SHA-256 of each file in a folder, written last to commit the folder."""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moray.errors import UserError, first_line
from moray.provenance.space import explain_full_disk

MANIFEST = "manifest.json"
# Has the comparisons with the plain libraries.
PROOF = "proof.json"
# Says what of an unfinished folder is on disk, which its manifest doesn't list.
JOURNAL = "journal.jsonl"
# Describes a dataset, with the SHA-256 of its splits.
DATASET = "dataset.json"
Files = dict[str, dict[str, Any]]
"""Size and SHA-256 of files, by their paths relative to a folder."""


def sha256_file(path: Path) -> str:
    """The hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(settings: Any, digests: Sequence[str]) -> str:
    """A digest of settings and of the digests of files, 16 hexadecimal digits."""
    whole = [settings, list(digests)]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def as_json(value: Any) -> bytes:
    """The content of a JSON file."""
    return f"{json.dumps(value, indent=2)}\n".encode()


def read_json(
    path: Path,
    keys: Collection[str] = (),
    remedy: str = "delete it and rerun to create it again",
) -> dict[str, Any]:
    """Read the mapping in a JSON file, which somebody or a crash may have damaged.

    Args:
        keys: keys that its content has.
        remedy: what to do if it is; by default, for files that the workflow writes.

    Raises:
        UserError: if it isn't whole.
        FileNotFoundError: if it doesn't exist.
    """
    try:
        content = json.loads(path.read_bytes())
    # The bytes aren't text, the text isn't JSON, or it has too many lists within lists.
    except (ValueError, RecursionError) as error:
        raise UserError(str(path), f"damaged: isn't JSON ({first_line(error)})", remedy) from error
    if not isinstance(content, dict):
        raise UserError(str(path), "damaged: isn't a mapping", remedy)
    if lacking := sorted({*keys} - content.keys()):
        raise UserError(str(path), f"damaged: has no {', '.join(lacking)}", remedy)
    return content


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_bytes(path, as_json(value))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def new_folder(folder: Path) -> Path:
    """Create an empty folder; an existing one is removed, its manifest first."""
    (folder / MANIFEST).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Create an empty folder for the body to fill; if the body fails, the folder is removed.

    Raises:
        UserError: if the disk is full.
    """
    new_folder(folder)
    try:
        with explain_full_disk(folder):
            yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_manifest(folder: Path, **facts: Any) -> None:
    """Flush a folder's files, also in subfolders, to disk; list them in its `manifest.json`."""
    (folder / MANIFEST).unlink(missing_ok=True)
    paths = [path for path in folder.rglob("*") if path.is_file() and path != folder / JOURNAL]
    write_listed_manifest(folder, list_files(folder, paths), **facts)


def write_listed_manifest(folder: Path, files: Files, **facts: Any) -> None:
    """Write a `manifest.json` with files listed by `list_files`, possibly in another process."""
    write_json(folder / MANIFEST, {**facts, "files": dict(sorted(files.items()))})


def list_files(folder: Path, paths: Iterable[Path]) -> Files:
    """Flush files below a folder to disk; returns their sizes and SHA-256."""
    paths = list(paths)
    names = [path.relative_to(folder).as_posix() for path in paths]
    # A digest takes 0.6 s per GB on one core.
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(_flush_and_digest, paths), strict=True))


def _flush_and_digest(path: Path) -> dict[str, Any]:
    # Safetensors lets only the owner read what it writes; the folder has what the umask permits.
    permitted = path.parent.stat().st_mode & 0o666
    if path.stat().st_mode & 0o777 != permitted:
        path.chmod(permitted)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a folder's manifest, and check that all files have the sizes it lists.

    Raises:
        UserError: if a file is missing or has another size.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            str(path), "file not found", "rerun the workflow to create the folder again"
        )
    manifest = read_json(path, ("files",))
    for name, entry in manifest["files"].items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            got = "no file" if size is None else f"{size} bytes"
            raise UserError(
                str(path),
                f"got {got}, expected {entry['bytes']} bytes",
                f"delete {folder / MANIFEST} and rerun to create the folder again",
            )
    return manifest


def damaged_files(folder: Path) -> list[str]:
    """The files of a folder that are missing or don't match their digests in its manifest.

    The manifest itself is listed if it is missing, damaged or empty.

    Raises:
        OSError: if a file can't be read now; the folder may still be intact.
    """
    try:
        files = read_json(folder / MANIFEST)["files"]
        digests = {name: expected["sha256"] for name, expected in files.items()}
    # The last three of JSON of any other form.
    except (FileNotFoundError, NotADirectoryError, UserError, AttributeError, KeyError, TypeError):
        return [MANIFEST]
    if not digests:
        return [MANIFEST]
    with ThreadPoolExecutor() as pool:
        actual = pool.map(_digest_if_there, (folder / name for name in digests))
        return [
            name
            for (name, expected), digest in zip(digests.items(), actual, strict=True)
            if digest is None or digest != expected
        ]


def _digest_if_there(path: Path) -> str | None:
    return sha256_file(path) if path.is_file() else None
