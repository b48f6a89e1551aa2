"""A preference run at the end of a chain: what is made, and what a change makes again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from project import ROOT, Change, Project, code, setting

pytestmark = pytest.mark.release

RUN = {
    "model": {"run": "base"},
    "dataset": "pairs",
    "data": {"block_size": 64},
    "train": {"launcher": "torchrun"},
}


@pytest.fixture(scope="module")
def preferred(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The finished project with a preference run, trained after it was planned with another."""
    project = finished.copy(tmp_path_factory.mktemp("preferred") / "project")
    project.configure(["runs", "preferred"], RUN)
    # With the same start and tokens, and another loss: they share the reference.
    project.configure(["runs", "other"], RUN | {"preference": {"loss": "ipo"}})
    assert len([job for job in project.planned() if job.startswith("reference ")]) == 1
    assert project.affected() == {
        "download pairs",
        "tokenize pairs",
        "reference pairs",
        *(f"{stage} {run}" for stage in STAGES for run in ("preferred", "other")),
    }
    project.configure(["runs", "other"], None)
    done = project.snakemake("--cores", "8", "eval", "generate")
    assert done.returncode == 0, done.stderr
    return project


STAGES = ("finetune", "export", "evaluate", "generate")
OF_PREFERRED = {f"{stage} preferred" for stage in STAGES}
OF_BASE = {f"{stage} base" for stage in STAGES}
# `tuned` starts from `base` too.
BELOW_BASE = OF_BASE | {f"{stage} tuned" for stage in STAGES} | OF_PREFERRED | {"reference pairs"}


def test_results_are_there(preferred: Project) -> None:
    results = preferred.folder / "results"
    assert len(list(results.glob("reference/*/manifest.json"))) == 1
    record = json.loads((results / "runs/preferred/train.json").read_text())
    assert record["preference"] == {"beta": 0.1, "label_smoothing": 0.0, "loss": "dpo"}
    scores = json.loads((results / "runs/preferred/eval.json").read_text())
    assert scores["base"]["reward_accuracy"]["value"] == 0.5
    samples = (results / "runs/preferred/samples.jsonl").read_text().splitlines()
    assert {"prompt", "reference", "base", "tuned"} <= json.loads(samples[0]).keys()
    assert "per pair" in (results / "runs/preferred/model/README.md").read_text()
    assert "nothing to be done" in preferred.snakemake("eval", "generate").stderr.lower()


def test_pairs_are_previewed(preferred: Project) -> None:
    done = preferred.snakemake("preview", "--cores", "1")
    assert done.returncode == 0, done.stderr
    assert "--- chosen 0: " in done.stdout
    assert "--- rejected 0: " in done.stdout


CHANGES: dict[str, tuple[Change, set[str]]] = {
    "beta": (setting("runs.preferred.preference", {"beta": 0.5}), OF_PREFERRED),
    "loss": (setting("runs.preferred.preference", {"loss": "ipo"}), OF_PREFERRED),
    "learning rate": (setting("runs.preferred.train.learning_rate", 0.5), OF_PREFERRED),
    "training of the start": (setting("runs.base.train.learning_rate", 0.5), BELOW_BASE),
    # Of the reference too, which is held as the run's own model.
    "precision of the training": (
        setting("runs.preferred.train.precision", "bf16"),
        OF_PREFERRED | {"reference pairs"},
    ),
    "precision of the scores": (
        setting("runs.preferred.evaluate", {"precision": "bf16"}),
        {"evaluate preferred"},
    ),
    "batch of the reference": (setting("runs.preferred.evaluate", {"batch_size": 2}), set()),
    "block size": (
        setting("runs.preferred.data.block_size", 32),
        OF_PREFERRED | {"reference pairs", "tokenize pairs"},
    ),
    "code of the loss": (code("tasks/preference/task.py"), OF_PREFERRED),
    "code of the pairs": (
        code("tasks/preference/tokens.py"),
        OF_PREFERRED | {"reference pairs", "tokenize pairs"},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_plans_what_a_change_affects(change: str, preferred: Project, tmp_path: Path) -> None:
    apply, expected = CHANGES[change]
    project = preferred.copy(tmp_path / "project")
    apply(project)
    assert project.affected() == expected


@pytest.mark.release
def test_the_overlay_runs_on_the_default_corpus(fresh: Project) -> None:
    shutil.copy(ROOT / "config/config.yaml", fresh.config)
    # Few steps of a narrow model, and nothing before them; what is left is the overlay's own.
    preferred = {"model": "tiny", "train": {"max_steps": 4, "launcher": "torchrun"}}
    small: dict[str, Any] = {
        "models": {"tiny": {"hidden_size": 32, "intermediate_size": 64}},
        "runs": {"base": None, "tuned": None, "preferred": preferred},
    }
    (fresh.folder / "config/small.yaml").write_text(yaml.safe_dump(small))
    overlays = ("--configfile", "config/preference.yaml", "config/small.yaml")
    target = "results/runs/preferred/eval.json"
    done = fresh.snakemake("--cores", "8", target, *overlays)
    assert done.returncode == 0, done.stderr
    scores = json.loads((fresh.folder / target).read_text())
    assert scores["pairs"] > 500
    (preview,) = fresh.folder.glob("results/tokens/pairs-*/preview.txt")
    shown = preview.read_text()
    assert "--- chosen " in shown
    assert "--- rejected " in shown
