"""Each check, on what is as it should be and on what isn't."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from moray.extras.doctor import checks


def test_libraries_are_held_against_the_lock_file(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"# By hand.\ntorch=={version('torch').partition('+')[0]}\n")
    assert checks.libraries(lock).remedy is None
    lines = ["", "--index-url https://pypi.org/simple", "numpy", "a==1; sys_platform == 'none'"]
    lines += [f"torch=={version('torch').partition('+')[0]}  # CPU", "ray[train]==0.1 --hash=a"]
    lock.write_text("\n".join(lines))
    assert checks.libraries(lock).finding == f"ray {version('ray')} instead of 0.1"
    lock.write_text("torch==0.1\nno-such-package==1.0\n")
    check = checks.libraries(lock)
    assert check.finding == (
        f"torch {version('torch').partition('+')[0]} instead of 0.1, no no-such-package"
    )
    assert check.remedy == f"pip install -r {lock}"


@pytest.mark.parametrize(
    ("limit", "sound"), [("max 100000", True), ("9900000 100000", True), ("50000 100000", False)]
)
def test_cores_are_held_against_the_limit_of_a_container(
    limit: str, sound: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moray.machine._QUOTA", tmp_path / "cpu.max")
    assert checks.cores().remedy is None
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert (checks.cores().remedy is None) == sound


def test_too_little_memory_or_disk_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_MEMORY_GB", "_DISK_GB"):
        monkeypatch.setattr(checks, name, 1e9)
    assert checks.memory().remedy
    assert checks.disk(tmp_path).remedy


def test_a_folder_that_cannot_be_written_is_found() -> None:
    assert checks.locks(Path("/proc")).remedy == "choose a folder that you may write to"


@pytest.mark.long
def test_the_command_finds_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/requirements.txt").write_text("torch==0.1\n")
    broken = {
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
        "CXX": "no-such-compiler",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled"),
        # Longer than the path of a socket may be.
        "RAY_TMPDIR": str(tmp_path / ("long" * 30)),
    }
    os.mkdir(broken["RAY_TMPDIR"])
    done = subprocess.run(
        [sys.executable, "-c", "from moray.cli import app; app()", "doctor"],
        cwd=tmp_path,
        env=os.environ | broken,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    *lines, last = done.stderr.splitlines()
    found = {name: state for state, name in _parsed(lines)}
    assert [name for name, state in found.items() if state == "!!"] == [
        "libraries",
        "GPUs",
        "compiler",
        "Ray",
    ]
    # It writes nothing to a folder that may be one that can't be written to.
    assert not (tmp_path / "logs").exists()
    assert "no-such-compiler" in Path(last.removeprefix("log: ")).read_text()


def _parsed(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        state, _, rest = line.partition("  ")
        yield state, rest.partition(":")[0]
