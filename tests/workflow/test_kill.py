"""One kill from end to end; tests/faults has all others."""

import json
import shutil
from pathlib import Path

import pytest
from faults.workflows import losses, weights
from project import Project


@pytest.fixture
def undisturbed(finished: Project, tmp_path: Path) -> Project:
    """The finished project, whose run `tuned` is trained a second time and without a kill."""
    project = finished.copy(tmp_path / "project")
    for kept in ("runs", "state"):
        shutil.rmtree(project.folder / "results" / kept / "tuned")
    project.configure(["runs", "tuned", "train", "launcher"], "torchrun")
    done = project.snakemake("finetune", "--cores", "8")
    assert done.returncode == 0, done.stderr
    return project


def test_after_a_kill_of_everything_the_same_command_ends_with_the_bytes_of_an_undisturbed_run(
    finished: Project, undisturbed: Project
) -> None:
    """The killed run is trained by Ray, and the undisturbed one without it."""
    record = json.loads((finished.folder / "results/runs/tuned/train.json").read_text())
    assert record["resumed_from"] >= 20
    assert weights(undisturbed, "tuned") == weights(finished, "tuned")
    assert losses(undisturbed, "tuned") == losses(finished, "tuned")
