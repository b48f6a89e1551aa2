"""Objects on Google Cloud Storage."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import GCSStore

from moray.storage.objects import ObjectInfo, Objects

if TYPE_CHECKING:
    from obstore.store import GCSConfig

_PART = 64 * 2**20
_THREADS = 4
_CHUNK = 2**20


class Store(Objects):
    """The objects below a URL `gs://bucket/prefix`.

    Credentials come from the environment, as for all of Google's clients; an object's version is
    its generation.
    """

    errors = (BaseError,)
    settings = "GOOGLE_APPLICATION_CREDENTIALS in the environment"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._store = GCSStore(
            self._bucket,
            prefix=self._prefix or None,
            # Short, so that a lock is renewed in spite of an answer that got lost. `timeout` is
            # that of a whole request, which may be a part of a large upload.
            config=cast(
                "GCSConfig",
                {"connect_timeout": "5 s", "read_timeout": "20 s", "timeout": "10 min"},
            ),
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=60)},
        )

    def get(self, key: str) -> tuple[bytes, str] | None:
        answer = self._get(key)
        return None if answer is None else (bytes(answer.bytes()), _version(answer.meta))

    def head(self, key: str) -> ObjectInfo | None:
        try:
            return _object_info(obstore.head(self._store, key))
        except FileNotFoundError:
            return None

    def put(self, key: str, content: bytes) -> None:
        obstore.put(self._store, key, content, use_multipart=False)

    def create(self, key: str, content: bytes) -> str | None:
        return self._put_if(key, content, "create")

    def replace(self, key: str, content: bytes, version: str) -> str | None:
        return self._put_if(key, content, {"version": version})

    def list_objects(self, prefix: str) -> dict[str, ObjectInfo]:
        return {
            meta["path"]: _object_info(meta)
            for page in obstore.list(self._store, prefix or None)
            for meta in page
        }

    def folders(self) -> list[str]:
        return list(obstore.list_with_delimiter(self._store)["common_prefixes"])

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                continue

    def upload(self, path: Path, key: str) -> None:
        obstore.put(self._store, key, path, chunk_size=_PART, max_concurrency=_THREADS)

    def abort_uploads(self, prefix: str, cut_off: Callable[[str], bool]) -> None:
        """Does nothing: obstore can't list uploads; a rule of the bucket can drop them."""

    def _chunks(self, key: str) -> Iterable[Any] | None:
        answer = self._get(key)
        return None if answer is None else answer.stream(min_chunk_size=_CHUNK)

    def _get(self, key: str) -> Any:
        try:
            return obstore.get(self._store, key)
        except FileNotFoundError:
            return None

    def _put_if(self, key: str, content: bytes, mode: Any) -> str | None:
        try:
            return _version(obstore.put(self._store, key, content, mode=mode))
        except (AlreadyExistsError, PreconditionError):
            return self._version_of(key, content)


def _object_info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["size"], meta["last_modified"].timestamp())


def _version(meta: Any) -> str:
    version: str = meta["version"]
    return version
