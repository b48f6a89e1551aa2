"""Between a stage and whoever started it. In processes of their own: streams are theirs."""

import os
import select
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest


def run_stage(log: Path, body: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import os, sys\nfrom moray.console import say\nfrom moray.errors import *\n"
        "from moray.stages.boundary import stage\nwith stage(sys.argv[1]):\n"
    )
    indented = "".join(f"    {line}\n" for line in dedent(body).strip().splitlines())
    return subprocess.run(
        [sys.executable, "-c", code + indented, str(log)],
        cwd=log.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_a_stage_prints_goes_to_the_log_and_what_it_says_to_both(tmp_path: Path) -> None:
    log = tmp_path / "logs/stage.log"
    done = run_stage(
        log,
        """
        print("noise")
        print("more", file=sys.stderr)
        os.write(1, b"from below\\n")
        say("one line")
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "one line\n")
    written = log.read_text()
    assert all(line in written for line in ("noise\n", "more\n", "from below\n", "one line\n"))


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (
            "UserError('runs.a.ray', 'got 9,\\nexpected 2', 'lower it')",
            "error: runs.a.ray: got 9, expected 2; lower it\n",
        ),
        (
            "ConfigError([UserError('a', 'got 1,\\nnot 0', 'x'), UserError('b', 'got 3', 'y')])",
            "error: a: got 1, not 0; x\nerror: b: got 3; y\n",
        ),
        ("ValueError('first\\nsecond')", "error: ValueError: first; the traceback is in {log}\n"),
        ("KeyError('x')", "error: KeyError: 'x'; the traceback is in {log}\n"),
        ("AssertionError", "error: AssertionError; the traceback is in {log}\n"),
    ],
)
def test_a_failure_costs_one_line_and_its_trace_is_logged(
    tmp_path: Path, raised: str, line: str
) -> None:
    log = tmp_path / "stage.log"
    done = run_stage(
        log,
        f"""
        try: 1 / 0
        except ZeroDivisionError as cause: raise {raised} from cause
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line.format(log=log))
    trace = log.read_text()
    assert "Traceback (most recent call last)" in trace
    assert "ZeroDivisionError: division by zero" in trace
    assert raised.partition("(")[0] in trace


def test_an_exit_of_the_stage_s_own_is_kept(tmp_path: Path) -> None:
    done = run_stage(tmp_path / "stage.log", "sys.exit(7)")
    assert (done.returncode, done.stderr) == (7, "")


def test_a_stage_ends_with_whoever_started_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    stage = (
        "import os, signal, sys\nfrom moray.stages.boundary import stage\n"
        "with stage(sys.argv[1]):\n    os.write(int(sys.argv[2]), b'runs')\n    signal.pause()\n"
    )
    starter = "import subprocess, sys; subprocess.run(sys.argv[1:], close_fds=False)"
    command = [sys.executable, "-c", stage, str(tmp_path / "stage.log"), str(writer)]
    parent = subprocess.Popen([sys.executable, "-c", starter, *command], pass_fds=[writer])
    os.close(writer)
    assert os.read(reader, 4) == b"runs"
    parent.kill()
    parent.wait()
    # The pipe ends once nobody holds its other side any more.
    ended, _, _ = select.select([reader], [], [], 30)
    assert ended
    assert os.read(reader, 1) == b""
    os.close(reader)
