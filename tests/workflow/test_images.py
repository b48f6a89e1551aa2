"""The overlay for images, as a user runs it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from project import ROOT, Project

pytestmark = pytest.mark.release

OVERLAY = "config/images.yaml"
TARGETS = ("eval", "generate", "--cores", "2", "--configfile", OVERLAY)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """After the overlay's run."""
    project = Project.create(tmp_path_factory.mktemp("images") / "project")
    shutil.copy(ROOT / "config/config.yaml", project.config)
    ended = project.snakemake(*TARGETS)
    assert ended.returncode == 0, ended.stderr
    return project


def test_a_resnet_tells_digits_apart(done: Project) -> None:
    results = done.folder / "results/runs/digits-resnet"
    result: dict[str, Any] = json.loads((results / "eval.json").read_text())
    assert result["base"]["accuracy"]["value"] < 0.3
    assert result["tuned"]["accuracy"]["value"] >= 0.97
    names = {path.name for path in results.iterdir()}
    assert {"samples.jsonl", "predictions.png", "predictions.svg", "generation.json"} <= names


def changed(done: Project, folder: Path, *path: str, value: Any) -> set[str]:
    """The jobs that run again once a key of the overlay has another value."""
    project = done.copy(folder)
    file = project.folder / OVERLAY
    whole = yaml.safe_load(file.read_text())
    section = whole
    for part in path[:-1]:
        section = section.setdefault(part, {})
    section[path[-1]] = value
    file.write_text(yaml.safe_dump(whole))
    return project.planned("eval", "generate", "--configfile", OVERLAY)


FROM_TRAINING = {f"{job} digits-resnet" for job in ("finetune", "export", "evaluate", "predict")}


def test_only_what_changed_runs_again(done: Project, tmp_path: Path) -> None:
    assert done.planned("eval", "generate", "--configfile", OVERLAY) == set()
    run = ("runs", "digits-resnet")
    jobs = changed(done, tmp_path / "a", *run, "data", "augmentation", "flip", value=True)
    assert jobs == FROM_TRAINING
    assert changed(done, tmp_path / "b", *run, "data", "block_size", value=64) == set()
    jobs = changed(done, tmp_path / "c", *run, "generate", value={"num_samples": 9})
    assert jobs == {"predict digits-resnet"}
    jobs = changed(done, tmp_path / "d", "models", "resnet", "seed", value=1)
    assert {"base model resnet", *FROM_TRAINING} <= jobs
    assert not any(job.startswith("download") for job in jobs)
