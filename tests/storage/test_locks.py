"""A run has one driver: the kernel's lock in a folder."""

import errno
from pathlib import Path

import pytest
from stored import holder

from moray.errors import UserError
from moray.storage.folder import FolderStorage

HOLDER = """
import sys
from pathlib import Path
from moray.storage.folder import FolderStorage
with FolderStorage(Path(sys.argv[1])).sole_driver():
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
        FolderStorage(tmp_path).sole_driver(),
    ):
        pytest.fail("nothing may run")


def test_in_a_folder_a_second_driver_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with holder(HOLDER, work) as first:
        with pytest.raises(UserError, match=f"process {first.pid} on .* since"):
            FolderStorage(work).sole_driver().__enter__()
        first.kill()
        first.wait()
        with FolderStorage(work).sole_driver():
            pass
