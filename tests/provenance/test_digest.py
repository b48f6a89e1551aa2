import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from moray.provenance.digest import fingerprint, sha256_file


def test_a_file_has_the_sha256_that_other_tools_give_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert sha256_file(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("size", [0, 1, 2**18, 2**20 + 1])
def test_all_bytes_of_a_file_count(size: int, tmp_path: Path) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    file = tmp_path / "file"
    file.write_bytes(content)
    assert sha256_file(file) == hashlib.sha256(content).hexdigest()


def digest(folder: Path, settings: object, contents: Sequence[str]) -> str:
    """Fingerprint of settings and of files with these contents."""
    folder.mkdir()
    files = [folder / str(number) for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_text(content)
    return fingerprint(settings, [sha256_file(file) for file in files])


SETTINGS = {"rate": 0.1, "steps": 10, "deep": {"a": 1, "b": None}}


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
    settings: object, contents: list[str], tmp_path: Path
) -> None:
    before = digest(tmp_path / "before", SETTINGS, ["x", "y"])
    assert digest(tmp_path / "after", settings, contents) != before


def test_names_of_files_and_order_of_keys_leave_a_fingerprint_as_it_is(tmp_path: Path) -> None:
    turned = {"deep": {"b": None, "a": 1}, "steps": 10, "rate": 0.1}
    here = digest(tmp_path / "here", SETTINGS, ["x", "y"])
    assert digest(tmp_path / "there", turned, ["x", "y"]) == here
    assert len(here) == 16
    assert int(here, 16) >= 0


def test_a_fingerprint_stays_what_it_was_in_earlier_versions(tmp_path: Path) -> None:
    # Checkpoints lie under it: if it changed, every run would begin again.
    assert digest(tmp_path / "folder", {"b": 1, "a": [True, None]}, ["x"]) == "d342ba4efdb3e956"
