"""A sweep in the workflow: its jobs, and what a change of it runs."""

import json
from pathlib import Path

import pytest
from project import Project

from moray.provenance.lineage import verify

RATES, DECAYS, SEEDS = [0.001, 0.002], [0, 0.1], range(3)


def sweep(project: Project, rates: list[float], seeds: int) -> None:
    project.configure(["defaults", "ray", "num_workers"], 1)
    tuned = {
        "model": {"run": "base"},
        "dataset": "functions",
        "train": {"launcher": "torchrun", "max_steps": 2},
        "grid": {"train.learning_rate": rates, "train.weight_decay": DECAYS},
        "seeds": seeds,
    }
    project.configure(["runs", "tuned"], tuned)


def jobs(stages: list[str], runs: set[str]) -> set[str]:
    return {f"{stage} {run}" for stage in stages for run in runs}


def names(rates: list[float], seeds: range = SEEDS) -> set[str]:
    return {
        f"tuned-learning_rate={rate}-weight_decay={decay}-seed={seed}"
        for rate in rates
        for decay in DECAYS
        for seed in seeds
    }


def test_a_sweep_shares_data_and_base(fresh: Project) -> None:
    sweep(fresh, RATES, len(SEEDS))
    planned = fresh.planned("finetune")
    tokens = {job for job in planned if job.startswith("tokenize ")}
    assert len(tokens) == 2
    data = {"download modules", "download functions", "base model tiny"}
    expected = jobs(["finetune", "export"], names(RATES) | {"base"})
    assert planned - tokens == data | expected


def searching(project: Project, trials: int) -> None:
    project.configure(["defaults", "ray", "num_workers"], 1)
    tuned = {
        "model": {"run": "base"},
        "dataset": "functions",
        "train": {"launcher": "torchrun", "max_steps": 4, "eval_steps": 2},
        "search": {
            "trials": trials,
            "space": {"train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
        },
    }
    project.configure(["runs", "tuned"], tuned)


@pytest.mark.long
def test_a_search_is_a_job_of_its_own_and_planning_does_not_load_its_library(
    fresh: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching(fresh, trials=2)
    assert not {job for job in fresh.planned("finetune") if "search" in job}
    searches = fresh.planned("search")
    assert {"export base", "search tuned"} < searches
    assert "finetune tuned" not in searches
    # Makes Python list what it imports.
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    imported = fresh.snakemake("--dry-run", "search").stderr
    assert "moray.config.load" in imported
    assert "optuna" not in imported


def test_what_a_search_needs_is_checked_before_the_first_job(fresh: Project) -> None:
    searching(fresh, trials=2)
    space = {"adapter.target_modules": [["q_proj"], ["q_prj"]]}
    fresh.configure(["runs", "tuned", "search", "space"], space)
    done = fresh.snakemake("--cores", "4", "search")
    assert done.returncode != 0
    assert "runs.tuned.adapter.target_modules: got q_prj, expected the name of a " in done.stderr
    assert not (fresh.folder / "results").exists()


@pytest.mark.release
def test_the_best_settings_of_a_search_are_an_overlay(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project")
    searching(project, trials=2)
    done = project.snakemake("--cores", "4", "search")
    assert done.returncode == 0, done.stderr
    folder = project.folder / "results/searches/tuned"
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert len(trials) == 2
    assert project.planned("search") == set()
    overlay = "results/searches/tuned/best.yaml"
    done = project.snakemake("--cores", "4", "finetune", "--configfile", overlay)
    assert done.returncode == 0, done.stderr
    record = json.loads((project.folder / "results/runs/tuned/train.json").read_text())
    best = min(trials, key=lambda trial: trial["validation_loss"])
    rate = best["values"]["train.learning_rate"]
    assert record["train"]["learning_rate"] == rate
    # Of the trial, whose checkpoint of the last step it takes.
    assert (record["fingerprint"], record["resumed_from"]) == (best["fingerprint"], 4)
    # The settings found are no reason to search again.
    assert project.planned("search", "--configfile", overlay) == set()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A smaller sweep that has been trained."""
    project = Project.create(tmp_path_factory.mktemp("sweep") / "project")
    sweep(project, RATES[:1], seeds=1)
    done = project.snakemake("--cores", "4", "finetune")
    assert done.returncode == 0, done.stderr
    return project


@pytest.mark.release
def test_every_run_of_a_sweep_has_its_model(swept: Project) -> None:
    made = {path.parts[-3] for path in swept.folder.glob("results/runs/*/model/manifest.json")}
    assert made == names(RATES[:1], range(1)) | {"base"}
    assert len(list(swept.folder.glob("results/tokens/functions-*"))) == 1
    assert swept.planned("finetune") == set()


@pytest.mark.release
@pytest.mark.parametrize(
    ("rates", "seeds", "new"),
    [
        (RATES, 1, names(RATES[1:], range(1))),
        (RATES[:1], 2, names(RATES[:1], range(1, 2))),
        (RATES[::-1], 2, names(RATES, range(2)) - names(RATES[:1], range(1))),
    ],
    ids=["a value more", "a seed more", "both, turned round"],
)
def test_exactly_what_is_new_is_trained(
    swept: Project, tmp_path: Path, rates: list[float], seeds: int, new: set[str]
) -> None:
    project = swept.copy(tmp_path / "project")
    sweep(project, rates, seeds)
    assert project.planned("finetune") == jobs(["finetune", "export"], new)


@pytest.mark.release
def test_a_run_starts_from_the_best_of_a_sweep(
    swept: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = swept.copy(tmp_path / "project")
    sweep(project, RATES[:1], seeds=1)
    train = {"launcher": "torchrun", "max_steps": 2}
    further = {"model": {"best": "tuned"}, "dataset": "functions", "train": train}
    project.configure(["runs", "further"], further)
    done = project.snakemake("--cores", "4", "finetune")
    assert done.returncode == 0, done.stderr
    choice = json.loads((project.folder / "results/best/tuned/choice.json").read_text())
    assert set(choice["validation_loss"]) == names(RATES[:1], range(1))
    assert choice["best"] == min(choice["validation_loss"], key=choice["validation_loss"].get)
    best, chosen = (
        (project.folder / f"results/{folder}/model/model.safetensors").read_bytes()
        for folder in ("best/tuned", f"runs/{choice['best']}")
    )
    assert best == chosen
    assert project.planned("finetune") == set()
    # All links hold, through the choice to the sources.
    monkeypatch.chdir(project.folder)
    found = verify([Path("results/runs/further/model")])
    assert (found.broken, found.missing) == ([], [])
    assert Path("results/best/tuned/choice.json") in found.checked
