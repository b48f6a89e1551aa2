"""Open the objects of a bucket, by its URL."""

import uuid

from moray.errors import UserError, first_line
from moray.storage.objects import Objects


def open_objects(url: str) -> Objects:
    """The objects below a URL `s3://bucket/prefix` or `gs://bucket/prefix`."""
    return _store_of(url)(url)


def check_objects(url: str, path: str) -> None:
    """Make sure that objects can be written below a URL, and are never created twice.

    Args:
        url: where to write.
        path: config path to name in errors.

    Raises:
        UserError: if they can't, or if the store doesn't know conditional writes.
    """
    # Of this check alone, because others may be under way.
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
    # Each takes a while to import.
    if url.startswith("gs://"):
        from moray.storage.gcs import GcsObjects

        return GcsObjects
    from moray.storage.s3 import S3Objects

    return S3Objects
