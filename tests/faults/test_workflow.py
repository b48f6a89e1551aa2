"""What befalls a workflow from outside: signals, damaged files, full disks, too little memory."""

import fcntl
import hashlib
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.workflows import (
    COMMAND,
    check_equal,
    environment,
    prepare,
    run,
    run_and_signal,
    weights,
)
from project import Project

from moray.storage.interface import step_of

pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return prepare(tmp_path_factory.mktemp("faults") / "ready", {})


@pytest.fixture(scope="module")
def undisturbed(ready: Project) -> Project:
    project = ready.copy(ready.folder.parent / "undisturbed")
    done = run(project)
    assert done.returncode == 0, done.stderr
    return project


def errors(reported: str) -> list[str]:
    return [line for line in reported.splitlines() if line.startswith("error: ")]


def checkpoints(project: Project) -> list[Path]:
    """From the oldest to the newest."""
    found = project.folder.glob("results/state/only/*/checkpoints/step-*")
    return sorted(path for path in found if ".tmp-" not in path.name)


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        ("snakemake", signal.SIGTERM),
        ("snakemake", signal.SIGINT),
        ("driver", signal.SIGTERM),
        ("group", signal.SIGTERM),
        ("everything", signal.SIGTERM),
        ("group", signal.SIGINT),
    ],
)
def test_a_workflow_that_is_asked_to_end_loses_no_step(
    victim: str, number: signal.Signals, ready: Project, undisturbed: Project, tmp_path: Path
) -> None:
    project = ready.copy(tmp_path / "project")
    first = run_and_signal(project, victim, 150, number)
    assert first.returncode != 0
    assert errors(first.stderr) == []
    (line,) = [line for line in first.stderr.splitlines() if "stopped at step" in line]
    at = step_of(checkpoints(project)[-1])
    assert at >= 150
    assert line == (
        f"runs.only: stopped at step {at} as requested, and saved a checkpoint; "
        "run the same command again to continue from there"
    )
    again = run(project)
    assert again.returncode == 0, again.stderr
    assert f"resumed from step {at}" in again.stderr
    check_equal(project, undisturbed)


def test_a_changed_run_that_is_asked_to_end_is_not_taken_for_its_earlier_model(
    undisturbed: Project, tmp_path: Path
) -> None:
    project = undisturbed.copy(tmp_path / "project")
    project.configure(["defaults", "train", "seed"], 1)
    # Else the last step done would be the earlier model's.
    shutil.rmtree(project.folder / "results/state/only")
    first = run_and_signal(project, "snakemake", 50, signal.SIGTERM)
    assert first.returncode != 0
    again = run(project)
    assert again.returncode == 0, again.stderr
    assert "resumed from step" in again.stderr
    assert weights(project) != weights(undisturbed)


def wait_for_workers(project: Project) -> None:
    """Orphaned workers train on for seconds; the lock of a run is theirs until they end."""
    (lock,) = project.folder.glob("results/state/only/*/writer.lock")
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("__0_0.distcp", flip),
        ("__1_0.distcp", truncate),
        ("__0_0.distcp", Path.unlink),
        (".metadata", flip),
        ("manifest.json", empty),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    name: str, damage: Callable[[Path], None], ready: Project, undisturbed: Project, tmp_path: Path
) -> None:
    project = ready.copy(tmp_path / "project")
    run_and_signal(project, "snakemake", 150, signal.SIGKILL)
    wait_for_workers(project)
    before, newest = checkpoints(project)[-2:]
    damage(newest / name)
    again = run(project)
    assert again.returncode == 0, again.stderr
    assert f"only  skipped checkpoint {newest.name}: damaged {name}" in again.stderr
    assert f"resumed from step {step_of(before)}" in again.stderr
    assert weights(project) == weights(undisturbed)


def test_a_worker_with_too_little_memory_is_tried_again_and_the_key_to_lower_is_reported(
    ready: Project, tmp_path: Path
) -> None:
    project = ready.copy(tmp_path / "project")
    project.configure(["defaults", "ray", "max_failures"], 1)
    project.configure(["defaults", "train", "global_batch_size"], 512)
    project.configure(["defaults", "train", "micro_batch_size"], 256)
    done = run(project, memory=12 * 2**20)
    assert done.returncode != 0
    (line,) = errors(done.stderr)
    start = (
        "error: train.micro_batch_size: micro-batches of 256 don't fit in the memory of worker 1 "
    )
    assert line.startswith(start)
    assert "; set it to 128, or set train.gradient_checkpointing: true or " in line
    # As often as `max_failures` says, and once before.
    assert (project.folder / "ledger.capped").read_text().count("capped") == 2
    assert "Traceback" not in done.stderr


def test_a_worker_that_hangs_ends_the_run_with_its_stack_in_the_log(
    ready: Project, tmp_path: Path
) -> None:
    project = ready.copy(tmp_path / "project")
    project.configure(["defaults", "ray", "max_failures"], 0)
    project.configure(["defaults", "train", "stall_timeout"], 15)
    done = run(project, hang=30)
    assert done.returncode != 0
    (line,) = errors(done.stderr)
    assert line.startswith("error: runs.only.train.stall_timeout: workers ")
    assert "completed no step within 15 s;" in line
    log = (project.folder / "logs/finetune/only.log").read_text()
    assert "worker 1 hung here:" in log
    # Where the fault that was put into it waits.
    assert "sitecustomize.py" in log


# In a mount namespace of its own: a small disk in the place of a folder, the command, a larger
# disk, the command again.
_ON_A_SMALL_DISK = """
mkdir -p "$1"
mount -t tmpfs -o size="$2" none "$1" || exit 43
folder=$1; shift 2
"$@" 2> first.log && exit 42
find "$folder" -type f > left.txt
mount -o remount,size=1g "$folder"
"$@" 2> second.log && cp results/runs/only/model/model.safetensors model.safetensors
"""


@pytest.mark.parametrize(
    ("folder", "size", "reported", "left"),
    [
        # Told before the split is written.
        (
            "results/tokens",
            "32k",
            r"results/tokens/functions-tiny-.*: its disk has .* bytes free, expected ",
            "preview.txt",
        ),
        (
            "results/state",
            "1300k",
            "/results/state/only/.*disk is full",
            "checkpoints/step-00000040/manifest.json",
        ),
        (
            "results/runs",
            "200k",
            "results/runs/only/model.*disk is full",
            "results/runs/only/train.json",
        ),
    ],
    ids=["tokenize", "checkpoint", "export"],
)
def test_a_full_disk_costs_one_line_and_the_same_command_goes_on(
    folder: str,
    size: str,
    reported: str,
    left: str,
    ready: Project,
    undisturbed: Project,
    tmp_path: Path,
) -> None:
    project = ready.copy(tmp_path / "project")
    shutil.rmtree(project.folder / folder, ignore_errors=True)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", _ON_A_SMALL_DISK, "sh", folder, size, *COMMAND],
        cwd=project.folder,
        env=environment(project),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 43 or "Operation not permitted" in done.stderr:
        pytest.skip(f"this machine lets nobody mount a small disk: {done.stderr.strip()}")
    first = (project.folder / "first.log").read_text()
    second = (project.folder / "second.log").read_text()
    assert done.returncode == 0, second
    (line,) = errors(first)
    assert re.search(reported, line)
    assert "Traceback" not in first
    files = (project.folder / "left.txt").read_text().splitlines()
    assert any(file.endswith(left) for file in files) == (folder != "results/tokens")
    assert not any(".tmp-" in file or file.endswith("model.safetensors") for file in files)
    ours = hashlib.sha256((project.folder / "model.safetensors").read_bytes()).hexdigest()
    assert ours == weights(undisturbed)
