"""Files count by their content: neither times nor places do, and other bytes always do."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from moray.provenance import contents
from moray.provenance.contents import contents_of

CACHE = Path(".snakemake/moray-contents-1")
# Long before now, so that digests are kept.
OLD = 1_500_000_000


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file of rows and the workflow's own folder."""
    monkeypatch.chdir(tmp_path)
    Path(".snakemake").mkdir()
    Path("rows.jsonl").write_text("one\ntwo\n")
    return tmp_path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what a test has just written count as written long ago."""
    monkeypatch.setattr(contents, "_UNSETTLED_NS", -1)


def digest() -> str:
    """That of the rows, as the next process finds it."""
    contents._read_cache.cache_clear()
    return contents_of(["rows.jsonl"])["rows.jsonl"]


def copied_with_its_time(content: str) -> None:
    Path("other").write_text(content)
    os.utime("other", (OLD, OLD))
    shutil.copy2("other", "rows.jsonl")


def moved(content: str) -> None:
    Path("other").write_text(content)
    shutil.copystat("rows.jsonl", "other")
    os.replace("other", "rows.jsonl")


def changed_in_place(content: str) -> None:
    """And its time set back, as an archive or a script does."""
    before = os.stat("rows.jsonl")
    Path("rows.jsonl").write_text(content)
    os.utime("rows.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))


def linked(content: str) -> None:
    Path("other").write_text(content)
    os.unlink("rows.jsonl")
    os.symlink("other", "rows.jsonl")


WAYS = (copied_with_its_time, moved, changed_in_place, linked)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("content", ["one\nTWO\n", "one\ntwo\nthree\n"])
def test_other_bytes_have_another_digest(way: Callable[[str], None], content: str) -> None:
    before = digest()
    assert before == hashlib.sha256(b"one\ntwo\n").hexdigest()[:16]
    assert CACHE.is_file()
    way(content)
    assert digest() == hashlib.sha256(content.encode()).hexdigest()[:16]


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("way", [*WAYS, lambda _: os.utime("rows.jsonl", (2e9, 2e9))])
def test_the_same_bytes_have_the_same_digest(way: Callable[[str], None]) -> None:
    before = digest()
    way("one\ntwo\n")
    assert digest() == before


@pytest.mark.usefixtures("settled")
def test_what_looks_the_same_is_not_read_again() -> None:
    digest()
    look, _ = contents._read_cache(CACHE.absolute())["rows.jsonl"]
    contents._write_cache({"rows.jsonl": (look, "of what was kept")})
    assert digest() == "of what was kept"


def test_a_file_that_has_just_changed_is_read_again() -> None:
    """It may change once more within one step of its file system's clock."""
    digest()
    assert not CACHE.exists()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[:-5],
        lambda text: text.partition(b"\n")[2],
        lambda text: text.replace(hashlib.sha256(b"one\ntwo\n").hexdigest()[:16].encode(), b"0"),
        lambda text: b"\xff\x00",
    ],
)
def test_damaged_digests_are_made_anew(damage: Callable[[bytes], bytes]) -> None:
    before = digest()
    CACHE.write_bytes(damage(CACHE.read_bytes()))
    assert digest() == before


@pytest.mark.usefixtures("settled")
def test_two_workflows_keep_each_others_digests() -> None:
    Path("other").write_text("x")
    contents._read_cache.cache_clear()
    # Both have read the file before either writes it.
    assert contents._read_cache(CACHE.absolute()) == {}
    before = digest()
    contents._read_cache.cache_clear()
    contents._read_cache(CACHE.absolute()).clear()
    contents_of(["other"])
    contents._read_cache.cache_clear()
    entries = contents._read_cache(CACHE.absolute())
    assert entries["rows.jsonl"][1] == before
    assert entries.keys() == {"rows.jsonl", "other"}


@pytest.mark.usefixtures("settled")
def test_digests_of_files_that_are_gone_are_dropped() -> None:
    digest()
    Path("other").write_text("x")
    Path("rows.jsonl").unlink()
    contents_of(["other"])
    contents._read_cache.cache_clear()
    assert contents._read_cache(CACHE.absolute()).keys() == {"other"}


def test_a_file_that_cannot_be_read_is_said_to_be_unreadable() -> None:
    assert contents_of(["nowhere", "rows.jsonl"])["nowhere"] == "unreadable"


def test_a_large_file_counts_by_its_size_and_samples() -> None:
    """That is said in docs/data.md."""
    size = 10**9 + 1
    with Path("rows.jsonl").open("wb") as file:
        file.truncate(size)
    before = digest()
    for place, byte in ((0, b"x"), (size - 1, b"y"), (size // 63 * 31, b"z")):
        with Path("rows.jsonl").open("r+b") as file:
            file.seek(place)
            file.write(byte)
        after = digest()
        assert after != before
        before = after
    with Path("rows.jsonl").open("ab") as file:
        file.write(b"\0")
    assert digest() != before
