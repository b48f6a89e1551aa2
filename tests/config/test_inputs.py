"""The param of a stage that reads the user's files: equal for equal bytes, different for others."""

import os
from pathlib import Path

import pytest

from moray.config.inputs import with_contents

CFG = {"path": "x", "state": {"python": "3"}, "test_share": 0.1}


def test_files_are_in_the_param_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("1")
    before = with_contents(CFG, ["a"], keep=True)
    assert before["state"].keys() == {"python", "files"}
    assert list(before) == sorted(before)
    os.utime("a", (0, 0))
    # Elsewhere, as a job on another machine reads them.
    assert with_contents(CFG, ["a"], keep=False) == before
    Path("a").write_text("2")
    os.utime("a", (0, 0))
    assert with_contents(CFG, ["a"], keep=True) != before


def test_a_param_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"{number:03}" for number in range(51)]
    for name in names:
        Path(name).write_text(name)
    before = with_contents(CFG, names, keep=True)
    assert before["state"]["files"].keys() == {"51 files"}
    Path("050").write_text("x")
    assert with_contents(CFG, names, keep=True) != before
    # Their order is that of the rows.
    Path("050").write_text("050")
    assert with_contents(CFG, names, keep=True) == before
    assert with_contents(CFG, names[::-1], keep=True) != before


def test_a_stage_without_files_has_the_same_param() -> None:
    assert with_contents(CFG, [], keep=True) == CFG
