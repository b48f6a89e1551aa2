import os
from pathlib import Path

import pytest

from moray.workers.output import followed_output


def test_lines_of_all_workers_are_copied_whole_and_those_of_an_earlier_start_are_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "output-0.txt").write_text("earlier\n")
    with followed_output(tmp_path):
        with (tmp_path / "output-0.txt").open("w") as first:
            first.write("one\nhalf a ")
        with (tmp_path / "output-11.txt").open("wb") as second:
            second.write(b"not \xff text\n")
        with (tmp_path / "output-0.txt").open("a") as first:
            first.write("line\nwithout an end")
    assert sorted(capfd.readouterr().err.splitlines()) == [
        "[worker 0] half a line",
        "[worker 0] one",
        "[worker 0] without an end",
        "[worker 11] not � text",
    ]


def test_the_log_does_not_grow_with_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What was copied once isn't copied again at the end."""
    with followed_output(tmp_path):
        file = tmp_path / "output-0.txt"
        file.write_text("once\n")
        while "once" not in (seen := capfd.readouterr().err):
            os.sched_yield()
    assert (seen + capfd.readouterr().err).count("once") == 1
