"""A worker that was cut off and lives on can't commit, nor remove what others have written."""

import pytest
from stored import BucketPlace

from moray.errors import UserError
from moray.extras.object_store.bucket import ObjectStorage
from moray.provenance.manifest import Files
from moray.storage.interface import Storage

REFUSED = "this run has been taken over by other workers"


def fenced(place: BucketPlace, token: int) -> ObjectStorage:
    """As the first worker of a driver with a lease opens it."""
    storage = place.storage(token)
    assert isinstance(storage, ObjectStorage)
    with storage.sole_writer():
        return storage


def upload(storage: Storage, step: int, content: bytes = b"weights") -> tuple[str, Files]:
    """An attempt that isn't committed, and its files."""
    attempt = storage.begin(step)
    file = storage.staging(attempt) / "model"
    file.write_bytes(content)
    return attempt, storage.persist(attempt, [file])


def commit(storage: Storage, step: int, content: bytes = b"weights") -> None:
    storage.commit(step, *upload(storage, step, content))


@pytest.mark.parametrize("token", [1, 2], ids=["replaced by its driver", "of a driver before"])
def test_a_worker_that_was_replaced_cannot_commit(place: BucketPlace, token: int) -> None:
    first = fenced(place, 1)
    commit(first, 10)
    second = fenced(place, token)
    for _ in range(2):
        with pytest.raises(UserError, match=REFUSED):
            commit(first, 20)
    assert second.steps() == [10]
    commit(second, 20, b"of the second")
    assert (second.fetch(20) / "model").read_bytes() == b"of the second"
    with pytest.raises(UserError, match=REFUSED):
        commit(first, 30)
    assert second.steps() == [10, 20]


def test_what_was_committed_before_the_takeover_counts(place: BucketPlace) -> None:
    first = fenced(place, 1)
    commit(first, 10)
    second = fenced(place, 2)
    assert second.steps() == [10]
    assert second.damaged_files(10) == []


def test_workers_of_a_driver_that_has_lost_its_lease_cannot_even_begin(place: BucketPlace) -> None:
    fenced(place, 2)
    with pytest.raises(UserError, match=REFUSED):
        fenced(place, 1)


def test_a_worker_that_was_replaced_removes_nothing(place: BucketPlace) -> None:
    first = fenced(place, 1)
    for step in (10, 20):
        commit(first, step)
    second = fenced(place, 2)
    attempt = upload(second, 30)
    with pytest.raises(UserError, match=REFUSED):
        first.remove(10)
    with pytest.raises(UserError, match=REFUSED):
        first.remove_uncommitted()
    second.commit(30, *attempt)
    assert second.steps() == [10, 20, 30]
    assert [second.damaged_files(step) for step in (10, 20, 30)] == [[], [], []]


def test_cleaning_leaves_what_a_later_worker_uploads(place: BucketPlace) -> None:
    """It began after the check of the first, whose deletions are still on their way."""
    first, second = fenced(place, 1), fenced(place, 2)
    attempt = upload(second, 10)
    first._commits.check = lambda: None  # type: ignore[method-assign]
    first.remove_uncommitted()
    second.commit(10, *attempt)
    assert second.damaged_files(10) == []
