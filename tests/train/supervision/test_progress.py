"""What the user sees of a run."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from moray.train.history import History
from moray.train.supervision.progress import shown

LINE = {"num_steps": 40, "learning_rate": 1e-3, "tokens_per_second": 1234.0, "step_seconds": 2.0}


def test_without_a_terminal_there_are_plain_lines_and_not_too_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with shown(tmp_path, "tuned"):
        history = History(tmp_path, first_step=0)
        for step in range(1, 41):
            history.append(step=step, loss=3.0, **LINE)
        history.append(step=40, num_steps=40, eval_loss=2.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tuned  step 1/40  loss 3.0000  lr 1.00e-03  tokens/s 1,234  left 1:18"
    assert lines[-1] == "tuned  step 40/40  held-out loss 2.5000"
    assert 15 <= len(lines) <= 22


def test_notes_are_reported_as_they_are_and_cost_no_line_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with shown(tmp_path, "tuned"):
        history = History(tmp_path, first_step=0)
        history.append(step=0, num_steps=40, note="blocks are compiled")
        history.append(step=1, loss=3.0, **LINE)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tuned  blocks are compiled"
    assert lines[1].startswith("tuned  step 1/40  loss 3.0000")


def test_the_share_of_the_peak_is_shown_where_it_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with shown(tmp_path, "tuned"):
        History(tmp_path, first_step=0).append(step=1, loss=3.0, mfu=0.4567, **LINE)
    assert "tokens/s 1,234  mfu 46%  left" in capsys.readouterr().err


ON_A_TERMINAL = """
import json, sys
from pathlib import Path
from moray.train.history import History
from moray.train.supervision.progress import shown
work, line = Path(sys.argv[1]), json.loads(sys.argv[2])
with shown(work, "tuned"):
    history = History(work, first_step=0)
    history.append(step=0, num_steps=40, note="blocks are compiled")
    history.append(step=10, loss=3.0, **line)
    history.append(step=10, num_steps=40, eval_loss=2.5)
"""


def test_on_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", ON_A_TERMINAL, str(tmp_path), json.dumps(LINE)]
    subprocess.run(command, stderr=theirs, check=True)
    os.close(theirs)
    shown_text = os.read(ours, 65536).decode()
    os.close(ours)
    assert "tuned  blocks are compiled\r\n" in shown_text
    *_, last = shown_text.rstrip().split("\r")
    assert last.startswith("tuned:  25%|")
    assert last.endswith("| 10/40, loss 3.0000, held-out 2.5000, left 1:00, tokens/s 1,234")
    assert len(last) <= 80


def test_steps_of_an_earlier_attempt_are_not_told_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = History(tmp_path, first_step=0)
    for step in range(1, 31):
        first.append(step=step, loss=3.0, **LINE)
    with shown(tmp_path, "tuned"):
        second = History(tmp_path, first_step=20)
        second.append(step=21, loss=1.0, **LINE)
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["21/40"]
