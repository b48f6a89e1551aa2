"""Stores that a process has left unfinished."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from moray.provenance.manifest import JOURNAL
from moray.rows import journal as module
from moray.rows.journal import Journal, resumable_folder
from moray.rows.store import Counts, RowsWriter

RECORD = np.dtype([("number", "<u4"), ("filled", "u1")])
WINDOWS = [3, 0, 5, 1]


def write(folder: Path, journal: Journal, until: int = len(WINDOWS)) -> RowsWriter:
    """Write windows, up to one before which the process is interrupted."""
    with RowsWriter(folder, "train", journal=journal) as writer:
        notes = writer.open("train.notes")
        assert notes
        for number in range(writer.num_resumed, len(WINDOWS)):
            if number == until:
                raise KeyboardInterrupt
            rows = np.zeros(WINDOWS[number], RECORD)
            rows["number"] = number
            notes.write(f"{number};".encode())
            writer.add(rows, len(rows), Counts({("notes",): 1, ("of", str(number % 2)): 2}))
    return writer


def write_one(folder: Path, journal: Journal, rows: int) -> None:
    with RowsWriter(folder, "train", journal=journal) as writer:
        writer.add(np.ones(rows, RECORD), rows)


def leave(folder: Path, until: int, key: str = "a") -> None:
    with pytest.raises(KeyboardInterrupt), resumable_folder(folder, key) as journal:
        write(folder, journal, until)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def whole(tmp_path: Path) -> tuple[dict[str, bytes], RowsWriter]:
    """What a process writes that nobody interrupts."""
    folder = tmp_path / "whole"
    with resumable_folder(folder, "a") as journal:
        writer = write(folder, journal)
    assert {*contents(folder)} == {"train.rows", "train.notes"}
    return contents(folder), writer


@pytest.mark.parametrize("until", range(len(WINDOWS)))
def test_the_next_process_writes_the_windows_that_are_left(
    until: int, whole: tuple[dict[str, bytes], RowsWriter], tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    leave(folder, until)
    with resumable_folder(folder, "a") as journal:
        writer = write(folder, journal)
    assert writer.num_resumed == until
    assert contents(folder) == whole[0]
    assert (writer.facts(), writer.counts) == (whole[1].facts(), whole[1].counts)


def test_a_kill_leaves_what_no_line_is_about(
    whole: tuple[dict[str, bytes], RowsWriter], tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    leave(folder, 2)
    for name in ("train.rows", "train.notes"):
        with (folder / name).open("ab") as file:
            file.write(b"half a window")
    with (folder / JOURNAL).open("ab") as file:
        file.write(b'{"split": "train", "rows": 5, "cou')
    with resumable_folder(folder, "a") as journal:
        writer = write(folder, journal)
    assert writer.num_resumed == 2
    assert contents(folder) == whole[0]


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_lines_are_written_now_and_then_and_after_what_they_are_about(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", seconds)
    folder = tmp_path / "store"
    with (
        resumable_folder(folder, "a") as journal,
        RowsWriter(folder, "train", journal=journal) as writer,
    ):
        writer.add(np.ones(4, RECORD), 4)
        lines = (folder / JOURNAL).read_text().splitlines()[1:]
        assert len(lines) == (seconds == 0)
        for line in lines:
            size = json.loads(line)["sizes"]["train.rows"]
            assert (folder / "train.rows").stat().st_size == size == 4 * RECORD.itemsize


@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_lines_that_the_files_do_not_bear_out_do_not_count(
    damage: str, whole: tuple[dict[str, bytes], RowsWriter], tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    leave(folder, 3)
    if damage == "removed":
        (folder / "train.notes").unlink()
    else:
        os.truncate(folder / "train.rows", 3)
    with resumable_folder(folder, "a") as journal:
        assert write(folder, journal).num_resumed == 0
    assert contents(folder) == whole[0]


@pytest.mark.parametrize("other", ["key", "code"])
def test_a_store_of_another_key_or_code_starts_over(
    other: str,
    whole: tuple[dict[str, bytes], RowsWriter],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "store"
    leave(folder, 2, key="b" if other == "key" else "a")
    if other == "code":
        monkeypatch.setattr(module, "code_digest", lambda: "0" * 8)
    (folder / "left.over").touch()
    with resumable_folder(folder, "a") as journal:
        assert write(folder, journal).num_resumed == 0
    assert contents(folder) == whole[0]
    assert "store: starts over, since an earlier process" in capsys.readouterr().err


def test_after_an_error_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with pytest.raises(ValueError, match="negative"), resumable_folder(folder, "a") as journal:
        write_one(folder, journal, -1)
    assert not folder.exists()
