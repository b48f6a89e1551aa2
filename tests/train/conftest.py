from collections.abc import Iterator
from pathlib import Path

import pytest
from gcs_server import gcs_server
from object_store import object_store
from stored import BucketPlace, Place

from moray.config import extras
from moray.storage.interface import Storage


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gcs_server(tmp_path_factory.mktemp("gcs")) as url:
        yield url


_STORES = [
    pytest.param("s3", marks=pytest.mark.long),
    pytest.param("gcs", marks=pytest.mark.release),
]


@pytest.fixture(params=["folder", *(_STORES if extras.is_there("object_store") else [])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of storage."""
    if request.param == "folder":
        return Place(tmp_path / "state")
    bucket = request.getfixturevalue(request.param)
    return BucketPlace(tmp_path, f"{bucket}/{tmp_path.name}/fingerprint")


@pytest.fixture
def storage(place: Place) -> Storage:
    """Opened by the one worker that may write."""
    return place.opened()
