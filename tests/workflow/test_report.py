"""Frames and report of a real workflow."""

from pathlib import Path

import pytest
from pages import Parsed, runs_in
from project import Project

from moray.results import load

pytestmark = pytest.mark.long


def test_frames_hold_what_the_files_say(finished: Project) -> None:
    results = load(finished.folder / "results")
    runs = results.runs.set_index("run")
    assert runs["status"].tolist() == ["finished"] * 2
    assert runs.loc["tuned", ["task", "base", "datasets"]].tolist() == [
        "language",
        "base",
        "functions",
    ]
    assert runs["steps"].to_dict() == {"base": 4, "tuned": 120}
    trained = results.history.query("run == 'tuned' and kind == 'train'")
    assert trained["step"].tolist() == list(range(1, 121))
    assert set(results.scores["model"]) == {"base", "tuned", "difference"}
    assert results.samples.groupby("run").size().to_dict() == {"base": 2, "tuned": 2}
    assert {"download", "finetune", "evaluate"} <= set(results.stages["stage"])


def test_the_workflow_makes_the_report(finished: Project, tmp_path: Path) -> None:
    project = finished.copy(tmp_path / "project")
    done = project.snakemake("report", "--cores", "8")
    assert done.returncode == 0, done.stderr
    page = (project.folder / "results/report.html").read_text()
    runs = runs_in(page)
    # In the order of the config.
    assert list(runs) == ["base", "tuned"]
    details = Parsed(runs["tuned"]["html"])
    for shown in ("data/functions.jsonl", "model.safetensors", "finetune"):
        assert shown in details.text
    assert {"pre", "mark"} <= {tag for tag, _ in details.tags}
    assert "Nothing to be done" in project.snakemake("report", "--cores", "8").stderr
