"""One kill from end to end; tests/faults has all others."""

import re
import shutil
import signal
from pathlib import Path

from faults.workflows import losses, run, run_and_signal, weights
from project import Project


def test_the_same_command_goes_on_after_a_kill_of_everything_and_ends_with_the_same_bytes(
    finished: Project, tmp_path: Path
) -> None:
    project = finished.copy(tmp_path / "project")
    for kept in ("runs", "state"):
        shutil.rmtree(project.folder / "results" / kept / "tuned")
    first = run_and_signal(project, "everything", 50, signal.SIGKILL, "tuned")
    assert first.returncode == -signal.SIGKILL
    assert not (project.folder / "results/runs/tuned/train.json").exists()

    again = run(project)
    assert again.returncode == 0, again.stderr
    assert re.search(r"resumed from step [1-9]", again.stderr)
    assert weights(project, "tuned") == weights(finished, "tuned")
    assert losses(project, "tuned") == losses(finished, "tuned")
