from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import object_store
from stored import BucketPlace, Place

from moray.storage.interface import Storage


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture(params=["folder", pytest.param("object store", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Both kinds of storage."""
    if request.param == "folder":
        return Place(tmp_path / "state")
    return BucketPlace(tmp_path, f"{request.getfixturevalue('bucket')}/{tmp_path.name}/fingerprint")


@pytest.fixture
def storage(place: Place) -> Storage:
    """Opened by the one worker that may write."""
    return place.opened()
