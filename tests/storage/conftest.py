from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import object_store
from stored import BucketPlace


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture
def place(bucket: str, tmp_path: Path) -> BucketPlace:
    """An empty place in an object store."""
    return BucketPlace(tmp_path, f"{bucket}/{tmp_path.name}/name/fingerprint")
