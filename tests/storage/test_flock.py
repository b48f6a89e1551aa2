"""A run has one driver, and its lock dies with the process that holds it."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from moray.errors import UserError
from moray.storage.flock import sole_driver

HOLDER = """
import sys
from pathlib import Path
from moray.storage.flock import sole_driver
with sole_driver(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_without_locks_of_the_kernel_a_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    with (
        pytest.raises(UserError, match=r"has no locks \(No locks available\)"),
        sole_driver(tmp_path),
    ):
        pytest.fail("nothing may run")


def test_a_second_driver_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(work)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {holder.pid} on .* since"):
            sole_driver(work).__enter__()
        holder.kill()
        holder.wait()
        with sole_driver(work):
            pass
