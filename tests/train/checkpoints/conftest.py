from collections.abc import Iterator
from pathlib import Path

import pytest
from stored import Place

from moray.storage.interface import Storage


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "state")


@pytest.fixture
def storage(place: Place) -> Iterator[Storage]:
    """Opened by the one worker that may write."""
    with place.written() as storage:
        yield storage
