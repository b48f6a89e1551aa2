"""Objects on Amazon S3 and on servers with its API.

By botocore, which `s3fs` brings: obstore 0.12 reads no profiles of `~/.aws`, and can't list uploads
that were cut off.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from moray.storage.objects import ObjectInfo, Objects

# A single request takes at most 5 GiB, and an upload in parts at most 10,000 of them.
_PART = 64 * 2**20
_THREADS = 4
_MOST_DELETED = 1000
# Several writers at once: some servers ask to try again (409) where others refuse (412).
_REFUSED, _TRY_AGAIN = "PreconditionFailed", "ConditionalRequestConflict"
_TRIES = 5
_ABSENT = {"NoSuchKey", "404"}
_CONFIG = Config(
    # Seconds; short, so that a lock is renewed in spite of an answer that got lost.
    connect_timeout=5,
    read_timeout=20,
    max_pool_connections=2 * _THREADS,
    retries={"mode": "standard", "total_max_attempts": 4},
)


class Store(Objects):
    """The objects below a URL `s3://bucket/prefix`.

    Credentials, region and endpoint come from the environment, as for all AWS clients.
    """

    errors = (ClientError, BotoCoreError)
    settings = "the AWS_ variables of the environment"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if self._prefix:
            self._prefix += "/"
        self._client = _session().create_client("s3", config=_CONFIG)

    def get(self, key: str) -> tuple[bytes, str] | None:
        answer = self._answer("get_object", key)
        return None if answer is None else (answer["Body"].read(), answer["ETag"])

    def head(self, key: str) -> ObjectInfo | None:
        answer = self._answer("head_object", key)
        return None if answer is None else _object_info(answer, "ContentLength")

    def put(self, key: str, content: bytes) -> None:
        self._client.put_object(**self._at(key), Body=content)

    def create(self, key: str, content: bytes) -> str | None:
        return self._put_if(key, content, IfNoneMatch="*")

    def replace(self, key: str, content: bytes, version: str) -> str | None:
        return self._put_if(key, content, IfMatch=version)

    def list_objects(self, prefix: str) -> dict[str, ObjectInfo]:
        return {
            entry["Key"].removeprefix(self._prefix): _object_info(entry, "Size")
            for page in self._pages("list_objects_v2", prefix)
            for entry in page.get("Contents", [])
        }

    def folders(self) -> list[str]:
        pages = self._pages("list_objects_v2", "", Delimiter="/")
        prefixes = (entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", []))
        return [prefix.removeprefix(self._prefix).rstrip("/") for prefix in prefixes]

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for start in range(0, len(keys), _MOST_DELETED):
            names = [{"Key": self._prefix + key} for key in keys[start : start + _MOST_DELETED]]
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": names, "Quiet": True}
            )
            for error in answer.get("Errors", []):
                raise ClientError({"Error": error}, "DeleteObjects")

    def upload(self, path: Path, key: str) -> None:
        size = path.stat().st_size
        if size <= _PART:
            self.put(key, path.read_bytes())
            return
        part = max(_PART, -(-size // 10_000))
        began = self._client.create_multipart_upload(**self._at(key))
        this = {**self._at(key), "UploadId": began["UploadId"]}

        def send(number: int) -> dict[str, Any]:
            with path.open("rb") as file:
                file.seek((number - 1) * part)
                body = file.read(part)
            answer = self._client.upload_part(**this, PartNumber=number, Body=body)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        with ThreadPoolExecutor(_THREADS) as pool:
            parts = list(pool.map(send, range(1, -(-size // part) + 1)))
        self._client.complete_multipart_upload(**this, MultipartUpload={"Parts": parts})

    def abort_uploads(self, prefix: str, cut_off: Callable[[str], bool]) -> None:
        for page in self._pages("list_multipart_uploads", prefix):
            for upload in page.get("Uploads", []):
                if cut_off(upload["Key"].removeprefix(self._prefix)):
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )

    def _chunks(self, key: str) -> Iterable[Any] | None:
        answer = self._answer("get_object", key)
        return None if answer is None else answer["Body"].iter_chunks(2**20)

    def _answer(self, operation: str, key: str) -> Any:
        """The answer to a request for an object; None if it doesn't exist."""
        try:
            return getattr(self._client, operation)(**self._at(key))
        except ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise

    def _put_if(self, key: str, content: bytes, **condition: str) -> str | None:
        for _ in range(_TRIES):
            try:
                version: str = self._client.put_object(**self._at(key), Body=content, **condition)[
                    "ETag"
                ]
                return version
            except ClientError as error:
                if _code(error) == _TRY_AGAIN:
                    continue
                if _code(error) not in (_REFUSED, *_ABSENT):
                    raise
                return self._version_of(key, content)
        return None

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _pages(self, operation: str, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        pages: Iterator[dict[str, Any]] = iter(
            self._client.get_paginator(operation).paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix, **options
            )
        )
        return pages


@cache
def _session() -> botocore.session.Session:
    # For each client, it logs where credentials and endpoint were found.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    # It keeps the descriptions of services, which take a third of a second to read.
    return botocore.session.get_session()


def _object_info(entry: dict[str, Any], size: str) -> ObjectInfo:
    return ObjectInfo(entry[size], entry["LastModified"].timestamp())


def _code(error: ClientError) -> str:
    code: str = error.response["Error"]["Code"]
    return code
