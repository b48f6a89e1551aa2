"""Manifests of folders, and the digests in them."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from moray.errors import UserError
from moray.provenance.manifest import (
    MANIFEST,
    atomic_folder,
    damaged_files,
    fingerprint,
    new_folder,
    read_manifest,
    sha256_file,
    write_json,
    write_manifest,
)

SETTINGS = {"rate": 0.1, "steps": 10, "deep": {"a": 1, "b": None}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files and their manifest."""
    path = tmp_path / "folder"
    (path / "deep/below").mkdir(parents=True)
    (path / "weights.bin").write_bytes(bytes(range(200)))
    (path / "empty").touch()
    (path / "deep/below/note.txt").write_text("a note")
    write_manifest(path, step=7, name="run")
    return path


def test_all_files_are_on_the_disk_before_the_manifest_that_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure is none of a test's, so it looks at what is flushed, and when."""
    (tmp_path / "below").mkdir()
    files = [tmp_path / "weights.bin", tmp_path / "below/note.txt"]
    for file in files:
        file.write_text(file.name)
    flushed: list[int] = []
    fsync = os.fsync

    def note(number: int) -> None:
        assert not (tmp_path / MANIFEST).exists()
        flushed.append(os.fstat(number).st_ino)
        fsync(number)

    monkeypatch.setattr("os.fsync", note)
    write_manifest(tmp_path)
    assert {*flushed[:-1]} == {file.stat().st_ino for file in files}
    assert flushed[-1] == (tmp_path / MANIFEST).stat().st_ino


def test_a_manifest_lists_all_files_and_the_facts(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert (manifest["step"], manifest["name"]) == (7, "run")
    assert {name: listed["bytes"] for name, listed in manifest["files"].items()} == {
        "deep/below/note.txt": 6,
        "empty": 0,
        "weights.bin": 200,
    }
    assert damaged_files(folder) == []


def test_files_can_be_read_by_those_who_can_read_their_folder(folder: Path) -> None:
    private = folder / "private"
    private.touch(mode=0o600)
    for permitted in (0o755, 0o700):
        folder.chmod(permitted)
        write_manifest(folder)
        assert private.stat().st_mode & 0o777 == permitted & 0o666


def test_a_manifest_that_cannot_be_read_now_says_nothing_of_its_folder(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to(MANIFEST)
    with pytest.raises(OSError, match="symbolic links"):
        damaged_files(folder)


def test_equal_folders_have_equal_manifests(folder: Path, tmp_path: Path) -> None:
    # Their digest stands for all that they hold.
    twin = tmp_path / "twin"
    (twin / "deep/below").mkdir(parents=True)
    (twin / "deep/below/note.txt").write_text("a note")
    (twin / "empty").touch()
    (twin / "weights.bin").write_bytes(bytes(range(200)))
    write_manifest(twin, step=7, name="run")
    assert (twin / MANIFEST).read_bytes() == (folder / MANIFEST).read_bytes()


def test_a_manifest_that_is_written_again_lists_what_is_there_now(folder: Path) -> None:
    (folder / "empty").unlink()
    (folder / "new").touch()
    write_manifest(folder)
    assert list(read_manifest(folder)["files"]) == ["deep/below/note.txt", "new", "weights.bin"]
    assert damaged_files(folder) == []


def test_a_folder_may_be_moved_with_its_manifest(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "moved")
    assert read_manifest(moved)["step"] == 7
    assert damaged_files(moved) == []


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("weights.bin", None, "got no file, expected 200 bytes"),
        ("weights.bin", bytes(100), "got 100 bytes, expected 200 bytes"),
        ("deep/below/note.txt", b"another note", "got 12 bytes, expected 6 bytes"),
        ("empty", b"x", "got 1 bytes, expected 0 bytes"),
    ],
)
def test_a_file_of_another_size_is_reported_when_the_manifest_is_read(
    name: str, content: bytes | None, problem: str, folder: Path
) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_manifest(folder)
    assert str(caught.value) == (
        f"{folder / name}: {problem}; "
        f"delete {folder / MANIFEST} and rerun to create the folder again"
    )
    assert damaged_files(folder) == [name]


def test_all_damaged_files_are_named(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    (folder / "deep/below/note.txt").write_text("a NOTE")
    assert damaged_files(folder) == ["deep/below/note.txt", "weights.bin"]


def test_a_missing_file_is_damaged_whatever_the_manifest_lists(folder: Path) -> None:
    manifest = read_manifest(folder)
    manifest["files"]["weights.bin"]["sha256"] = None
    write_json(folder / MANIFEST, manifest)
    (folder / "weights.bin").unlink()
    assert damaged_files(folder) == ["weights.bin"]


@pytest.mark.parametrize(
    "content", ["", "{", '{"files": {', "[]", "null", "{}", '{"files": {}}', '{"files": null}']
)
def test_a_folder_whose_manifest_is_broken_is_damaged(content: str, folder: Path) -> None:
    (folder / MANIFEST).write_text(content)
    assert damaged_files(folder) == [MANIFEST]


def test_a_folder_without_a_manifest_is_damaged(folder: Path, tmp_path: Path) -> None:
    (folder / MANIFEST).unlink()
    assert damaged_files(folder) == [MANIFEST]
    assert damaged_files(tmp_path / "none") == [MANIFEST]


def test_a_json_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    write_json(file, {"before": 1})
    with pytest.raises(TypeError):
        write_json(file, {"after": [2] * 10_000 + [object()]})
    assert json.loads(file.read_text()) == {"before": 1}
    write_json(file, {"after": 2})
    assert json.loads(file.read_text()) == {"after": 2}
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_folder_is_empty_whatever_was_there(folder: Path, tmp_path: Path) -> None:
    assert list(new_folder(folder).iterdir()) == []
    assert list(new_folder(tmp_path / "deep/new").iterdir()) == []


def test_a_folder_that_is_filled_stays(folder: Path) -> None:
    with atomic_folder(folder) as empty:
        assert list(empty.iterdir()) == []
        (empty / "new").touch()
    assert [path.name for path in folder.iterdir()] == ["new"]


def fill_half(folder: Path, fail: Callable[[], object]) -> None:
    with atomic_folder(folder):
        (folder / "deep").mkdir()
        (folder / "deep/half").write_bytes(bytes(100))
        fail()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_folder_that_is_not_filled_goes_with_what_was_there_before(
    folder: Path, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(error):
        fill_half(folder, fail)
    assert not folder.exists()


def test_a_full_disk_leaves_nothing_behind_and_is_reported(folder: Path) -> None:
    with pytest.raises(UserError, match=f"^{folder}: the disk is full after writing 100 bytes"):
        fill_half(folder, lambda: Path("/dev/full").write_bytes(b"x"))
    assert not folder.exists()


@pytest.mark.parametrize("size", [0, 1, 2**18, 2**20 + 1])
def test_all_bytes_of_a_file_count(size: int, tmp_path: Path) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    file = tmp_path / "file"
    file.write_bytes(content)
    assert sha256_file(file) == hashlib.sha256(content).hexdigest()


def digest(settings: object, contents: Sequence[str]) -> str:
    """Fingerprint of settings and of files with these contents."""
    digests = [hashlib.sha256(content.encode()).hexdigest() for content in contents]
    return fingerprint(settings, digests)


@pytest.mark.parametrize(
    ("settings", "contents"),
    [
        ({"rate": 0.2, "steps": 10, "deep": {"a": 1, "b": None}}, ["x", "y"]),
        ({"rate": 0.1, "steps": "10", "deep": {"a": 1, "b": None}}, ["x", "y"]),
        ({"rate": 0.1, "steps": 10, "deep": {"a": 2, "b": None}}, ["x", "y"]),
        ({"rate": 0.1, "steps": 10}, ["x", "y"]),
        (SETTINGS, ["x", "z"]),
        (SETTINGS, ["y", "x"]),
        (SETTINGS, ["xy", ""]),
        (SETTINGS, ["x"]),
        (SETTINGS, ["x", "y", ""]),
        (SETTINGS, []),
    ],
)
def test_another_setting_or_byte_gives_another_fingerprint(
    settings: object, contents: list[str]
) -> None:
    assert digest(settings, contents) != digest(SETTINGS, ["x", "y"])


def test_the_order_of_keys_leaves_a_fingerprint_as_it_is() -> None:
    turned = {"deep": {"b": None, "a": 1}, "steps": 10, "rate": 0.1}
    here = digest(SETTINGS, ["x", "y"])
    assert digest(turned, ["x", "y"]) == here
    assert len(here) == 16
    assert int(here, 16) >= 0


def test_a_fingerprint_stays_what_it_was_in_earlier_versions() -> None:
    # Checkpoints lie under it: if it changed, every run would begin again.
    assert digest({"b": 1, "a": [True, None]}, ["x"]) == "d342ba4efdb3e956"
