"""Objects in a bucket, with conditional writes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Listed:
    """An object in a listing.

    Attributes:
        size: bytes.
        changed: when it was written, in seconds since the epoch, by the store's clock.
    """

    size: int
    changed: float


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

    @abstractmethod
    def __init__(self, url: str) -> None: ...

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, str] | None:
        """An object's content and its version; None if it isn't there."""

    @abstractmethod
    def head(self, key: str) -> Listed | None:
        """An object's size and time; None if it isn't there."""

    @abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Create or replace an object."""

    @abstractmethod
    def create(self, key: str, content: bytes) -> str | None:
        """Create an object and return its version; None if there is one already.

        Args:
            key: the object's key.
            content: differs from what anyone else would write, which tells a repeated request from
                a refused one.
        """

    @abstractmethod
    def replace(self, key: str, content: bytes, version: str) -> str | None:
        """Replace a version of an object and return the new one; None if there is another.

        Args:
            key: the object's key.
            content: as for `create`.
            version: the version to replace.
        """

    @abstractmethod
    def listed(self, prefix: str) -> dict[str, Listed]:
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

    @abstractmethod
    def download(self, key: str, path: Path) -> bool:
        """Download an object to a file; returns whether it is there."""
