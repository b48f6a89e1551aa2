"""What a program in the sandbox can't do."""

import socket
from pathlib import Path

import pytest

from moray.evaluate.sandbox import run_sandboxed, works

pytestmark = pytest.mark.skipif(
    not works(), reason="bubblewrap isn't installed here, or user namespaces aren't permitted"
)

TRIED = """
import sys
try:
    {what}
except {error}:
    print("refused")
else:
    print("done")
"""


def test_a_program_has_its_input_and_the_standard_library() -> None:
    program = "import sys, statistics; print(statistics.mean(map(int, sys.stdin.read().split())))"
    assert run_sandboxed(program, "1 2 6") == "3\n"


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("bytearray(2 << 30)", "MemoryError"),
        ("import pathlib; pathlib.Path('/tmp/file').write_bytes(bytes(2 << 20))", "OSError"),
        ("open('/usr/file', 'w')", "OSError"),
        ("open('/etc/passwd')", "OSError"),
        ("import numpy", "ImportError"),
        ("files = [open('/dev/null') for _ in range(100)]", "OSError"),
    ],
    ids=["memory", "a large file", "a file of the system", "a user's file", "packages", "files"],
)
def test_what_it_may_not_is_refused(what: str, error: str) -> None:
    assert run_sandboxed(TRIED.format(what=what, error=error), "") == "refused\n"


def test_files_of_the_user_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    program = f"import os; print(os.path.exists({str(tmp_path / 'secret')!r}))"
    assert run_sandboxed(program, "") == "False\n"


def test_there_is_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection({server.getsockname()!r}, 1)"
        assert run_sandboxed(TRIED.format(what=connect, error="OSError"), "") == "refused\n"


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60); print(1)"])
def test_a_program_that_does_not_end_is_ended(program: str) -> None:
    assert run_sandboxed("print('begun', flush=True)\n" + program, "", seconds=1) == "begun\n"
