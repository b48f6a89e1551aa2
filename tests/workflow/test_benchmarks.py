"""Benchmarks of a run, through the whole workflow."""

import json
import os
from pathlib import Path

import pytest
from benchmark_tasks import write_tasks
from project import Project

from moray.provenance.lineage import verify
from moray.results import load


@pytest.mark.release
def test_benchmarks_run_when_their_tasks_change(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = finished.copy(tmp_path / "project")
    assert project.planned("benchmark") == set()
    tasks = write_tasks(project.folder / "tasks", documents=8)
    own = ["runs", "tuned", "benchmarks"]
    project.configure(own, {"tasks": ["puzlez"], "include_path": "tasks"})
    # Planning doesn't import the harness, so it can't know the tasks.
    assert project.planned("benchmark") == {"benchmark tuned"}
    failed = project.snakemake("benchmark", "--cores", "8")
    assert "runs.tuned.benchmarks.tasks: got puzlez, expected" in failed.stderr
    assert "did you mean puzzles?" in failed.stderr
    assert not (project.folder / "logs/benchmark").exists()

    project.configure(own, {"tasks": ["puzzles"], "include_path": "tasks"})
    done = project.snakemake("benchmark", "--cores", "8")
    assert done.returncode == 0, done.stderr
    assert "tuned: puzzles acc " in done.stderr
    # What the harness prints is in the log.
    assert "Running loglikelihood requests" not in done.stderr
    monkeypatch.chdir(project.folder)
    record = Path("results/runs/tuned/benchmarks.json")
    assert json.loads(record.read_text())["tasks"]["puzzles"]["documents"] == 16
    scores = load("results").scores
    mine = scores[(scores["run"] == "tuned") & (scores["dataset"] == "puzzles")]
    assert mine["model"].tolist() == ["base", "tuned", "difference"]
    assert verify([record]).broken == []

    assert project.planned("benchmark") == set()
    project.configure([*own, "batch_size"], 3)
    assert project.planned("benchmark") == set()
    (tasks / "words.yaml").write_text((tasks / "words.yaml").read_text() + "\n")
    os.utime(tasks / "words.yaml")
    assert project.planned("benchmark") == {"benchmark tuned"}
    assert verify([record]).broken == [
        "tasks/words.yaml: changed since results/runs/tuned/benchmarks.json was made from it"
    ]
    project.configure([*own, "include_path"], "elsewhere")
    failed = project.snakemake("benchmark", "--cores", "8")
    assert "runs.tuned.benchmarks.include_path: got elsewhere, expected a folder" in failed.stderr
