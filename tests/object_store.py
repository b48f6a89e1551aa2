"""Object stores of one's own, on the loopback interface."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import s3fs
from gcs_server import gcs_server
from moto.server import ThreadedMotoServer

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "an-access-key-id", "AWS_SECRET_ACCESS_KEY": "a-secret-key"}


@contextmanager
def object_store() -> Iterator[str]:
    """The URL of a fresh bucket on an S3 server; meanwhile the environment leads clients to it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        # Instances are kept for good, those of an earlier server too.
        s3fs.S3FileSystem.clear_instance_cache()
        bucket = f"bucket-{uuid.uuid4().hex[:8]}"
        s3fs.S3FileSystem().mkdir(bucket)
        try:
            yield f"s3://{bucket}"
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            server.stop()


@contextmanager
def bucket_of(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a fresh bucket of a kind, `s3` or `gcs`, with credentials in a folder."""
    with gcs_server(folder) if kind == "gcs" else object_store() as url:
        yield url
