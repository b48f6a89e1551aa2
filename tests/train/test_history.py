"""The history over crashes."""

import os
from pathlib import Path

import pytest

from moray.train.history import HISTORY, History, evaluations, read_history


def test_a_resumed_run_forgets_the_steps_behind_its_checkpoint(tmp_path: Path) -> None:
    first = History(tmp_path, first_step=0)
    for step in range(1, 6):
        first.append(step=step, loss=float(step))
    second = History(tmp_path, first_step=3)
    second.append(step=4, loss=40.0)
    lines = list(read_history(tmp_path / HISTORY))
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1), (2, 2), (3, 3), (4, 40)]


def test_lines_are_on_the_disk_once_they_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("os.fsync", lambda number: flushed.append(os.fstat(number).st_ino))
    history = History(tmp_path, first_step=0)
    history.append(step=1)
    history.sync()
    assert flushed == [history.path.stat().st_ino]


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / HISTORY
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert list(read_history(path)) == [{"step": 1}]
    History(tmp_path, first_step=2).append(step=3)
    assert [line["step"] for line in read_history(path)] == [1, 3]


def test_the_evaluations_before_the_checkpoint_are_remembered(tmp_path: Path) -> None:
    first = History(tmp_path, first_step=0)
    assert evaluations(tmp_path, until=6) == {}
    first.append(step=0, num_steps=6, note="blocks are compiled")
    for step in (2, 4, 6):
        first.append(step=step, loss=9.0)
        first.append(step=step, eval_loss=1 / step)
    assert evaluations(tmp_path, until=6) == {2: 1 / 2, 4: 1 / 4, 6: 1 / 6}
    assert evaluations(tmp_path, until=5) == {2: 1 / 2, 4: 1 / 4}
    History(tmp_path, first_step=4)
    assert evaluations(tmp_path, until=6) == {2: 1 / 2, 4: 1 / 4}
    assert next(read_history(tmp_path / HISTORY))["note"] == "blocks are compiled"


def test_a_run_that_begins_again_has_one_beginning(tmp_path: Path) -> None:
    for _ in range(2):
        History(tmp_path, first_step=0).append(step=0, num_steps=6, note="begun")
    assert len(list(read_history(tmp_path / HISTORY))) == 1
