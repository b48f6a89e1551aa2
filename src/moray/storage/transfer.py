"""Files that machines without a shared folder exchange through an object store.

The inputs of workers are folders with manifests, whole or not at all; stores that are streamed are
copied below a URL of the user's. Of work under way, workers on the driver's machine write into its
folder; those on other machines copy their files below a URL, from where the driver takes them.
"""

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import fsspec

from moray.background import call_repeatedly
from moray.console import say
from moray.errors import UserError, first_line
from moray.provenance.manifest import MANIFEST, damaged_files, fingerprint, sha256_file
from moray.storage.objects import open_objects

_SECONDS = 2.0
# Is in the driver's folder.
_MARKER = "driver"


def scratch() -> Path:
    """A folder for this user alone.

    Raises:
        UserError: if another user has made a folder of that name.
    """
    folder = Path(tempfile.gettempdir(), f"moray-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UserError(
            str(folder), "belongs to another user", "set TMPDIR to a folder of your own"
        )
    return folder


def fill_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder unless another process on this machine did; it is whole or not there.

    The folder is named after its content; an empty one takes its place once it is filled.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            temporary = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            fill(temporary)
            temporary.rename(folder)
    return folder


@dataclass(frozen=True)
class Delivery:
    """Folders with manifests that have been uploaded.

    They may refer to each other by relative paths, so they keep their places among each other.

    Attributes:
        url: where folders are, by the SHA-256 of their manifests.
        folders: the folders on the machine that they are from, absolute, and these digests.
    """

    url: str
    folders: tuple[tuple[Path, str], ...]

    def here(self, folder: Path) -> Path:
        """The place of one of the folders on this machine; they are downloaded once a machine.

        If they are here already, that is their own place.

        Raises:
            UserError: if a file in the object store is missing or damaged.
        """
        if all(
            (own / MANIFEST).is_file() and sha256_file(own / MANIFEST) == digest
            for own, digest in self.folders
        ):
            return folder
        name = fingerprint(
            [str(own) for own, _ in self.folders], [digest for _, digest in self.folders]
        )
        root = fill_once(scratch() / "inputs" / name, self._download)
        return root / folder.relative_to("/")

    def _download(self, root: Path) -> None:
        objects = open_objects(self.url)
        for folder, digest in self.folders:
            target = root / folder.relative_to("/")
            objects.download(f"{digest}/{MANIFEST}", target / MANIFEST)
            for name in json.loads((target / MANIFEST).read_text())["files"]:
                objects.download(f"{digest}/{name}", target / name)
            if damaged := damaged_files(target):
                raise UserError(
                    f"{self.url}/{digest}",
                    f"missing or damaged files: {', '.join(damaged)}",
                    "delete it and run the same command again",
                )


def deliver(folders: list[Path], storage_path: str) -> Delivery:
    """Upload folders with manifests for other machines, unless they are there already."""
    # Can't clash with a run, whose name can't begin with a dot.
    url = f"{storage_path.rstrip('/')}/.inputs"
    objects = open_objects(url)
    digests = []
    for folder in folders:
        digest = sha256_file(folder / MANIFEST)
        digests.append((folder.absolute(), digest))
        if objects.head(f"{digest}/{MANIFEST}"):
            continue
        say(f"copying {folder} to {url}")
        # The manifest last, which makes it count.
        for name in (*json.loads((folder / MANIFEST).read_text())["files"], MANIFEST):
            objects.upload(folder / name, f"{digest}/{name}")
    return Delivery(url, tuple(digests))


def copy_to(store: Path, url: str) -> str:
    """Copy a store to a URL, the manifest last, unless it is there already; returns the copy's URL.

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


@contextmanager
def receive_files(folder: Path, url: str) -> Iterator[None]:
    """During the body and after it, download what workers on other machines have sent to a URL.

    The URL is for this folder alone.
    """
    (folder / _MARKER).touch()
    objects = open_objects(url)
    states: dict[str, tuple[float, int]] = {}

    def take() -> None:
        there = objects.list_objects("")
        for name, entry in there.items():
            state = entry.last_modified, entry.size
            if states.get(name) != state and objects.download(name, folder / name):
                states[name] = state
        for name in states.keys() - there.keys():
            (folder / name).unlink(missing_ok=True)
            del states[name]

    try:
        with _repeat_attempts(take, objects.errors):
            yield
    finally:
        take()
        objects.delete(objects.list_objects(""))


@contextmanager
def send_files(folder: Path, url: str, names: Sequence[str], shared: str) -> Iterator[None]:
    """During the body and after it, send this worker's files to a driver on another machine.

    Args:
        names: the files that only this worker writes.
        shared: the file that all workers read and the first one to do so writes.
    """
    if (folder / _MARKER).exists():
        yield
        return
    objects = open_objects(url)
    states: dict[str, tuple[float, int]] = {}

    def send() -> None:
        for name in names:
            file = folder / name
            if not file.exists():
                continue
            facts = file.stat()
            if states.get(name) != (facts.st_mtime, facts.st_size):
                objects.put(name, file.read_bytes())
                states[name] = facts.st_mtime, facts.st_size
        if (folder / shared).exists():
            objects.create(shared, (folder / shared).read_bytes())
        else:
            objects.download(shared, folder / shared)

    try:
        with _repeat_attempts(send, objects.errors):
            yield
    finally:
        send()


def _repeat_attempts(
    function: Callable[[], None], errors: tuple[type[Exception], ...]
) -> AbstractContextManager[None]:
    def attempt() -> None:
        try:
            function()
        except errors as error:
            # The object store may be back the next time.
            print(f"can't exchange files with the object store: {error}", file=sys.stderr)

    return call_repeatedly(attempt, _SECONDS)
