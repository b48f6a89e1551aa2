from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import bucket_of
from stored import BucketPlace


@pytest.fixture(scope="module", params=["s3", "gcs"])
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A bucket of each kind of object store."""
    with bucket_of(request.param, tmp_path_factory.mktemp("bucket")) as url:
        yield url


@pytest.fixture
def place(bucket: str, tmp_path: Path) -> BucketPlace:
    """An empty place in an object store."""
    return BucketPlace(tmp_path, f"{bucket}/{tmp_path.name}/name/fingerprint")
