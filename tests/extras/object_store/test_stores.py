"""Objects of each kind of store: conditional writes, listings, files of many parts."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from stored import BucketPlace

from moray.errors import UserError
from moray.storage.objects import Objects, check_objects, open_objects


@pytest.fixture
def objects(place: BucketPlace) -> Objects:
    return open_objects(place.url)


def test_an_object_is_created_once_and_replaced_in_a_known_version_only(objects: Objects) -> None:
    assert objects.get("key") is None
    assert objects.head("key") is None
    first = objects.create("key", b"first")
    assert first is not None
    assert objects.create("key", b"second") is None
    second = objects.replace("key", b"second", first)
    assert second not in (None, first)
    assert objects.replace("key", b"third", first) is None
    assert objects.get("key") == (b"second", second)
    objects.delete(["key"])
    assert objects.replace("key", b"third", first) is None


def test_a_repeated_request_whose_answer_was_lost_is_no_refusal(objects: Objects) -> None:
    version = objects.create("key", b"mine")
    assert version is not None
    assert objects.create("key", b"mine") == version
    replaced = objects.replace("key", b"also mine", version)
    assert objects.replace("key", b"also mine", version) == replaced


def test_a_download_is_there_when_it_is_whole(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others look for the file, such as workers for a fault, and read it at once."""
    file, there = tmp_path / "fault.json", []
    objects.put(file.name, b"[1, 2]")

    def in_parts(self: Objects, key: str) -> Iterator[bytes]:
        yield b"[1"
        there.append(file.exists())
        if len(there) == 1:
            raise self.errors[-1]
        yield b", 2]"

    monkeypatch.setattr(type(objects), "_chunks", in_parts)
    with pytest.raises(objects.errors):
        objects.download(file.name, file)
    assert list(tmp_path.iterdir()) == []
    assert objects.download(file.name, file)
    assert there == [False, False]
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"[1, 2]"]


def test_keys_are_listed_below_a_prefix(objects: Objects) -> None:
    for key in ("top", "a/one", "a/b/two", "a b/three", "c.d=e/four"):
        objects.put(key, key.encode())
    assert set(objects.list_objects("")) == {"top", "a/one", "a/b/two", "a b/three", "c.d=e/four"}
    list_objects = objects.list_objects("a/")
    assert {key: found.size for key, found in list_objects.items()} == {"a/one": 5, "a/b/two": 7}
    assert sorted(objects.folders()) == ["a", "a b", "c.d=e"]
    head = objects.head("a/one")
    assert head is not None
    # The time in a header has no fractions of a second.
    assert head.size == 5
    assert head.last_modified == pytest.approx(list_objects["a/one"].last_modified, abs=1)
    objects.delete(["top", "a/one", "never there"])
    assert set(objects.list_objects("")) == {"a/b/two", "a b/three", "c.d=e/four"}


def test_a_file_of_many_parts_arrives_whole(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = 5 * 2**20
    monkeypatch.setattr(importlib.import_module(type(objects).__module__), "_PART", part)
    content = bytes(range(256)) * (part * 2 // 256 + 1)
    (tmp_path / "sent").write_bytes(content)
    objects.upload(tmp_path / "sent", "folder/file")
    assert objects.download("folder/file", tmp_path / "new/received")
    assert (tmp_path / "new/received").read_bytes() == content
    assert not objects.download("folder/none", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_store_that_can_be_written_to_is_left_as_it_was(bucket: str) -> None:
    check_objects(f"{bucket}/checked", "runs.tuned.ray.storage_path")
    assert open_objects(f"{bucket}/checked").list_objects("") == {}


def test_a_store_that_ignores_conditions_is_refused(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(objects: Objects, key: str, content: bytes) -> str:
        objects.put(key, content)
        return "version"

    monkeypatch.setattr(type(open_objects(bucket)), "create", create)
    with pytest.raises(UserError, match=f"{bucket}/state ignores the conditions of requests"):
        check_objects(f"{bucket}/state", "runs.tuned.ray.storage_path")


@pytest.mark.long
def test_a_store_that_cannot_be_reached_is_named_in_one_line(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "GOOGLE_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(UserError) as fault:
        check_objects(f"{bucket}/checked", "runs.tuned.ray.storage_path")
    assert str(fault.value).startswith(
        f"runs.tuned.ray.storage_path: can't write to {bucket}/checked ("
    )
    assert "\n" not in str(fault.value)
