import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moray import console

# Streams are buffered, as they are unless a user has it otherwise.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}

BEFORE = """
import ctypes, os, subprocess, sys
from pathlib import Path
from moray.console import say, redirect_streams, terminal
log = Path(sys.argv[1])
"""


def run(script: str, log: Path) -> tuple[str, str, str]:
    """What a process that runs this script shows on its output, its error stream, in its log."""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + script, str(log)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, done.stderr, log.read_text() if log.exists() else ""


@pytest.mark.parametrize(
    "noise",
    [
        "print('noise')",
        "print('noise', file=sys.stderr)",
        "print('noise', end='')",
        "os.write(1, b'noise')",
        "os.write(2, b'noise')",
        "subprocess.run(['echo', 'noise'])",
        "subprocess.run('echo noise >&2', shell=True)",
        "libc = ctypes.CDLL(None); libc.printf(b'noise'); libc.fflush(None)",
        "libc = ctypes.CDLL(None); libc.write(2, b'noise', 5)",
    ],
)
def test_whatever_writes_to_the_streams_of_a_stage_writes_to_its_log(
    noise: str, tmp_path: Path
) -> None:
    shown = run(f"with redirect_streams(log):\n    {noise}", tmp_path / "log")
    assert [text.strip() for text in shown] == ["", "", "noise"]


def test_what_is_said_reaches_the_user_and_the_log(tmp_path: Path) -> None:
    script = "with redirect_streams(log):\n    print('noise', file=sys.stderr)\n    say('a line')"
    assert run(script, tmp_path / "log") == ("", "a line\n", "noise\na line\n")


def test_without_a_log_what_is_said_is_shown_once(tmp_path: Path) -> None:
    assert run("say('a line')", tmp_path / "log") == ("", "a line\n", "")


def test_what_is_drawn_on_the_terminal_stays_out_of_the_log(tmp_path: Path) -> None:
    script = "with redirect_streams(log):\n    print('bar', file=terminal(), flush=True)"
    assert run(script, tmp_path / "log") == ("", "bar\n", "")


def test_the_streams_come_back_afterwards_even_from_an_error(tmp_path: Path) -> None:
    script = """
try:
    with redirect_streams(log):
        print("before")
        raise ValueError
except ValueError:
    pass
print("out")
subprocess.run("echo err >&2", shell=True)
say("a line")
"""
    assert run(script, tmp_path / "log") == ("out\n", "err\na line\n", "before\n")


def test_a_log_is_added_to_and_its_folder_is_made(tmp_path: Path) -> None:
    script = """
for line in ("first", "second"):
    with redirect_streams(log):
        print(line)
"""
    assert run(script, tmp_path / "deep/below/log")[2] == "first\nsecond\n"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    script = """
before = os.listdir("/dev/fd")
with redirect_streams(log):
    pass
print(len(os.listdir("/dev/fd")) - len(before))
"""
    assert run(script, tmp_path / "log")[0] == "0\n"


def test_progress_is_reported_in_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    """They say how fast it goes and, if the total is known, how long it still takes."""
    script = """
from moray import console
console._SECONDS_BETWEEN_LINES = 0
clock = 0
console.time.monotonic = lambda: clock
found = ""
for letter in console.progress("abc", "tokenize train", "window", 500, start=100):
    found += letter
    clock += 8
assert found == "abc"
for _ in console.progress("a", "download notes", "row"):
    clock += 8
"""
    reported = [
        "tokenize train: 101 of 500 windows, 0.125/s, 53:12 left",
        "tokenize train: 102 of 500 windows, 0.125/s, 53:04 left",
        "tokenize train: 103 of 500 windows, 0.125/s, 52:56 left",
        "download notes: 1 rows, 0.125/s",
    ]
    assert run(script, tmp_path / "log") == ("", "\n".join(reported) + "\n", "")


def test_silence_is_broken_more_and_more_rarely_until_something_is_said(tmp_path: Path) -> None:
    script = """
from moray import console
clock = 0
console.time.monotonic = lambda: clock
console.say("before")
silence = console._Silence("finetune base")
console.wait_for("Ray to start")
for clock in range(1, 75):
    silence.look()
say("after")
for clock in range(75, 87):
    silence.look()
# What is done is counted, once there is something done.
for batch in console.progress("ab", "evaluate base", "batch", 2):
    clock += 6
    silence.look()
"""
    waits = [
        f"finetune base: waiting for Ray to start ({after} s)" for after in (5, 10, 20, 40, 70)
    ]
    at_work = [f"finetune base: at work ({after} s)" for after in (79, 84)]
    counted = ["finetune base: 1 of 2 batches (98 s)"]
    shown = ["before", *waits, "after", *at_work, *counted]
    assert run(script, tmp_path / "log") == ("", "\n".join(shown) + "\n", "")


def test_a_short_loop_tells_nothing(tmp_path: Path) -> None:
    script = (
        "from moray.console import progress\nassert len(list(progress('abc', 'x', 'row'))) == 3"
    )
    assert run(script, tmp_path / "log") == ("", "", "")


def test_a_bar_counts_whole_units(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(console, "_terminal", terminal)
    sizes = [2_097_152, 4_194_304, 2_097_152, 1_611_392]
    total = sum(sizes) / 1e6
    shown = console.progress(sizes, "read", "MB", total, 0.0, units_of=lambda size: size / 1e6)
    assert [*shown] == sizes
    counts = re.findall(r" (\S+)/(\S+) \[", terminal.getvalue())
    assert counts
    assert all(done.isdigit() and of == "10" for done, of in counts)
