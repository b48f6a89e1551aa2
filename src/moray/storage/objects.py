"""Objects in a bucket, with conditional writes."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from moray.config import extras
from moray.errors import UserError, first_line


@dataclass(frozen=True)
class ObjectInfo:
    """An object in a listing.

    Attributes:
        size: bytes.
        last_modified: when it was written, in seconds since the epoch, by the store's clock.
    """

    size: int
    last_modified: float


class Objects(ABC):
    """The objects below a URL, by what follows it.

    Attributes:
        url: URL of a bucket or of a prefix in it, without a slash at its end.
        errors: what methods raise if the store refuses a request or can't be reached.
        settings: where credentials come from, for errors.
    """

    url: str
    errors: tuple[type[Exception], ...]
    settings: str

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url.rstrip("/")
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, str] | None:
        """An object's content and its version; None if it doesn't exist."""

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """An object's size and time; None if it doesn't exist."""

    @abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Create or replace an object."""

    @abstractmethod
    def create(self, key: str, content: bytes) -> str | None:
        """Create an object and return its version; None if there is one already.

        The content must be unique: it tells a repeated request from a refused one.
        """

    @abstractmethod
    def replace(self, key: str, content: bytes, version: str) -> str | None:
        """Replace a version of an object and return the new one; None if there is another."""

    @abstractmethod
    def list_objects(self, prefix: str) -> dict[str, ObjectInfo]:
        """The objects in a folder: the prefix is empty or ends with a slash."""

    @abstractmethod
    def folders(self) -> list[str]:
        """The parts of keys before their first slash."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, as far as they are there."""

    @abstractmethod
    def upload(self, path: Path, key: str) -> None:
        """Upload a file; large ones in parts, which don't count before the last is there."""

    @abstractmethod
    def abort_uploads(self, prefix: str, cut_off: Callable[[str], bool]) -> None:
        """Drop the parts of uploads that were cut off, which are stored and paid for otherwise."""

    def download(self, key: str, path: Path) -> bool:
        """Download an object to a file, atomically; returns whether it is there."""
        chunks = self._chunks(key)
        if chunks is None:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        # Hidden, and of this process alone: others look for files and may fetch the same.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            with temporary.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    @abstractmethod
    def _chunks(self, key: str) -> Iterable[Any] | None:
        """The bytes of an object, in parts; None if it doesn't exist."""

    def _version_of(self, key: str, content: bytes) -> str | None:
        """The version of an object with this content; None if it has another.

        If a request with a condition was refused, the answer to an earlier try may have been lost.
        """
        current = self.get(key)
        return current[1] if current is not None and current[0] == content else None


def open_objects(url: str) -> Objects:
    """The objects below a URL `s3://bucket/prefix` or `gs://bucket/prefix`."""
    return _store_of(url)(url)


def check_objects(url: str, path: str) -> None:
    """Make sure that objects can be written below a URL, and are never created twice.

    Raises:
        UserError: if they can't, or if the store doesn't know conditional writes.
    """
    # The key is this check's alone, because others may be under way.
    key = f".moray-check-{uuid.uuid4().hex}"
    store = _store_of(url)
    try:
        objects = store(url)
        first, second = (objects.create(key, text) for text in (b"first", b"second"))
        objects.delete([key])
    except store.errors as error:
        raise UserError(
            path,
            f"can't write to {url} ({first_line(error)})",
            f"check the bucket, the network, and {store.settings}",
        ) from error
    if first and second:
        raise UserError(
            path,
            f"{url} ignores the conditions of requests, which prevent a run from being trained "
            "twice at the same time",
            "use an object store that knows them, or a folder",
        )


def _store_of(url: str) -> type[Objects]:
    scheme = url.partition("://")[0]
    # Each takes a while to import, and its library may be missing.
    store: type[Objects] = extras.part(extras.SCHEMES[scheme], scheme).Store
    return store
