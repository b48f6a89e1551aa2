"""A run with a teacher: what is made, and what a change makes again."""

import json
from html import unescape
from pathlib import Path

import pytest
from pages import runs_in
from project import Change, Project, code, setting

pytestmark = pytest.mark.release

TEACHER = {"teacher": {"run": "base"}, "top_k": 8}
RUN = {
    "model": "tiny",
    "dataset": "functions",
    "data": {"block_size": 64},
    "train": {"launcher": "torchrun"},
    "distillation": TEACHER,
}
STAGES = ("finetune", "export", "evaluate", "generate")
OF_STUDENT = {f"{stage} student" for stage in STAGES}
TAUGHT = OF_STUDENT | {"teacher functions"}


@pytest.fixture(scope="module")
def taught(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The finished project with a run that has one of its runs as its teacher."""
    project = finished.copy(tmp_path_factory.mktemp("taught") / "project")
    project.configure(["runs", "student"], RUN)
    # With the same teacher and tokens, and another weight: they share what is stored.
    project.configure(["runs", "other"], RUN | {"distillation": TEACHER | {"alpha": 0.9}})
    assert len([job for job in project.planned() if job.startswith("teacher ")]) == 1
    project.configure(["runs", "other"], None)
    done = project.snakemake("--cores", "8", "eval", "generate", "report")
    assert done.returncode == 0, done.stderr
    return project


def test_results_are_there(taught: Project) -> None:
    results = taught.folder / "results"
    assert len(list(results.glob("teacher/*/manifest.json"))) == 1
    record = json.loads((results / "runs/student/train.json").read_text())
    assert record["distillation"] == {
        "alpha": 0.5,
        "precision": "auto",
        "teacher": {"run": "base"},
        "temperature": 1.0,
        "top_k": 8,
    }
    card = (results / "runs/student/model/README.md").read_text()
    assert "predictions of `results/runs/base/model` too" in card
    assert "bits_per_byte" in json.loads((results / "runs/student/eval.json").read_text())["tuned"]
    lineage = json.loads((results / "runs/student/model/lineage.json").read_text())
    assert "results/runs/base/model/manifest.json" in lineage["inputs"]
    assert "nothing to be done" in taught.snakemake("eval", "generate", "report").stderr.lower()
    details = runs_in((results / "report.html").read_text())["student"]["html"]
    assert "distillation.teacher.run" in details
    assert "entropy of the teacher's likeliest tokens" in unescape(details)


CHANGES: dict[str, tuple[Change, set[str]]] = {
    "weight": (setting("runs.student.distillation.alpha", 0.9), OF_STUDENT),
    "temperature": (setting("runs.student.distillation.temperature", 2), TAUGHT),
    "learning rate": (setting("runs.student.train.learning_rate", 0.5), OF_STUDENT),
    "batch of the teacher": (setting("runs.student.evaluate", {"batch_size": 2}), set()),
    "code of the loss": (code("tasks/distillation/loss.py"), OF_STUDENT),
    "code of the teacher": (code("tasks/distillation/teacher.py"), TAUGHT),
    "no teacher": (setting("runs.student.distillation", None), OF_STUDENT),
}


@pytest.mark.parametrize("change", CHANGES)
def test_plans_what_a_change_affects(change: str, taught: Project, tmp_path: Path) -> None:
    apply, expected = CHANGES[change]
    project = taught.copy(tmp_path / "project")
    apply(project)
    assert project.affected() == expected
