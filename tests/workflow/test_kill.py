"""One kill from end to end; tests/faults has all others."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from faults.workflows import losses, run_and_signal, weights
from project import Project

COMMAND = ("snakemake", "--cores", "8", "finetune")


@pytest.mark.long
def test_after_a_kill_of_everything_the_same_command_ends_with_the_bytes_of_an_undisturbed_run(
    finished: Project, tmp_path: Path
) -> None:
    """The killed run is trained by Ray, and the undisturbed one without it."""
    killed = finished.copy(tmp_path / "killed")
    for kept in ("runs", "state"):
        shutil.rmtree(killed.folder / "results" / kept / "tuned")
    killed.configure(["runs", "tuned", "train", "launcher"], "ray")
    ended = run_and_signal(killed, "everything", 30, signal.SIGKILL, "tuned", COMMAND)
    assert ended.returncode == -signal.SIGKILL
    done = killed.snakemake(*COMMAND[1:])
    assert done.returncode == 0, done.stderr
    record = json.loads((killed.folder / "results/runs/tuned/train.json").read_text())
    assert record["resumed_from"] >= 20
    assert weights(finished, "tuned") == weights(killed, "tuned")
    # Each step once, though the run was killed.
    assert [*losses(killed, "tuned")] == [*range(1, record["steps"] + 1)]
    assert losses(finished, "tuned") == losses(killed, "tuned")


@pytest.mark.long
def test_a_workflow_that_ignores_sigint_from_its_start_goes_on(
    finished: Project, tmp_path: Path
) -> None:
    """Shells start the background jobs of a script so."""
    again = finished.copy(tmp_path / "again")
    again.configure(["runs", "base", "train", "max_steps"], 8)
    ignoring = "trap '' INT; exec snakemake --cores 2 results/runs/base/train.json"
    with subprocess.Popen(
        ["sh", "-c", ignoring],
        cwd=again.folder,
        env=again.environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        started = any(line.startswith("run base: 8 steps;") for line in running.stderr)
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
    assert started
    assert running.returncode == 0, rest
