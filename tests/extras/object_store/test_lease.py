"""A run has one driver: a lease in an object store."""

import json
from pathlib import Path
from typing import Any

import pytest
from fleet import until
from stored import BucketPlace, holder

from moray.errors import UserError
from moray.storage.objects import Objects, open_objects

# Its lease is short, so that a test needn't wait for long, and it renews it all the same.
HOLDER = """
import sys
from pathlib import Path
from moray.extras.object_store.bucket import ObjectStorage
with ObjectStorage(Path(sys.argv[1]), sys.argv[2], lease_seconds=1.5).sole_driver():
    print("held", flush=True)
    sys.stdin.read()
"""


def lease(place: BucketPlace) -> dict[str, Any]:
    found = open_objects(place.url).get("lease.json")
    assert found is not None
    content: dict[str, Any] = json.loads(found[0])
    return content


def test_a_second_driver_is_refused_until_the_first_is_dead(
    place: BucketPlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with holder(HOLDER, tmp_path, place.url) as first:
        with pytest.raises(UserError, match=f"process {first.pid} on .* since") as caught:
            place.storage().sole_driver().__enter__()
        assert "\n" not in str(caught.value)
        assert lease(place)["token"] == 1
        first.kill()
        first.wait()
        capsys.readouterr()
        with place.storage().sole_driver():
            assert lease(place)["token"] == 2
        assert f"process {first.pid} on" in capsys.readouterr().err


def test_a_driver_that_has_ended_leaves_no_lock(
    place: BucketPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    for token in (1, 2, 3):
        with place.storage().sole_driver():
            assert lease(place)["token"] == token
    assert capsys.readouterr().err == ""


def test_a_lock_outlives_its_lease_as_long_as_it_is_renewed(place: BucketPlace) -> None:
    with place.storage(lease_seconds=0.3).sole_driver():
        until(lambda: lease(place).get("renewal", 0) >= 5)
        assert lease(place)["token"] == 1


def test_a_lock_is_renewed_after_a_renewal_whose_answer_was_lost(
    place: BucketPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has written it, and the holder doesn't know the version."""
    kind = type(open_objects(place.url))
    replace = kind.replace

    def without_answer(objects: Objects, key: str, content: bytes, version: str) -> str | None:
        replace(objects, key, content, version)
        monkeypatch.undo()
        raise kind.errors[-1]

    with place.storage(lease_seconds=0.3).sole_driver():
        monkeypatch.setattr(kind, "replace", without_answer)
        until(lambda: lease(place).get("renewal", 0) >= 3)
    assert lease(place)["released"]


def test_of_two_drivers_at_the_same_moment_one_is_refused(
    place: BucketPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that there is no lock; the store decides."""
    kind = type(open_objects(place.url))
    get, other = kind.get, place.storage().sole_driver()

    def look_before_the_other(objects: Objects, key: str) -> tuple[bytes, str] | None:
        found = get(objects, key)
        monkeypatch.undo()
        other.__enter__()
        return found

    monkeypatch.setattr(kind, "get", look_before_the_other)
    with pytest.raises(UserError, match="has been training this run since"):
        place.storage().sole_driver().__enter__()
    other.__exit__(None, None, None)


def test_a_holder_whose_lock_was_taken_does_not_release_that_of_the_next(
    place: BucketPlace,
) -> None:
    with place.storage().sole_driver():
        # As if it had been cut off for so long that another driver took it over.
        open_objects(place.url).put("lease.json", b'{"token": 2, "id": "next"}')
    assert lease(place) == {"token": 2, "id": "next"}
