"""A copy of the package with the tasks of the documentation, and without other tasks."""

import json
import shutil

import pytest
from project import Project
from slices import add_slice, remove_tasks


@pytest.mark.long
def test_a_task_on_text_needs_modules_and_facts_and_no_change_of_the_workflow(
    fresh: Project,
) -> None:
    add_slice("docs/tasks.md", fresh)
    gaps = {"source": "files", "path": "data/modules.jsonl", "format": "infill"}
    fresh.configure(["datasets", "gaps"], gaps | {"test_share": 0.2, "validation_share": 0.1})
    launcher = {"launcher": "torchrun"}
    fresh.configure(["runs"], {"only": {"model": "tiny", "dataset": "gaps", "train": launcher}})
    done = fresh.snakemake("eval", "preview", "--cores", "2")
    assert done.returncode == 0, done.stderr
    assert "<mid>" in done.stdout
    scores = json.loads((fresh.folder / "results/runs/only/eval.json").read_text())
    assert scores["documents"] > 0
    assert scores["tuned"]["bits_per_byte"]["value"] < scores["base"]["bits_per_byte"]["value"]


@pytest.mark.release
def test_a_task_with_rows_of_its_own_is_its_folder_its_rules_and_its_entries(
    fresh: Project,
) -> None:
    """Without them, as before they were added, the workflow trains, and refuses their format."""
    stages = ("tokenize_labelled", "classify")
    names = ("reward", "token_classification", "classification")
    remove_tasks(names, "labelled text", stages, fresh)
    only = {"model": "tiny", "dataset": "modules", "train": {"launcher": "torchrun"}}
    fresh.configure(["runs"], {"only": only})
    done = fresh.snakemake("cards", "generate", "results/report.html", "--cores", "2")
    assert done.returncode == 0, done.stderr
    fresh.configure(["datasets", "modules", "format"], "classification")
    done = fresh.snakemake("--dry-run", "eval")
    assert "datasets.modules.format: got 'classification', expected " in done.stderr


@pytest.mark.release
def test_the_folder_of_a_task_can_be_removed(fresh: Project) -> None:
    for name in (
        "classification",
        "distillation",
        "images",
        "kto",
        "preference",
        "reward",
        "token_classification",
    ):
        shutil.rmtree(fresh.folder / "src/moray/tasks" / name)
    only = {"model": "tiny", "dataset": "modules", "train": {"launcher": "torchrun"}}
    fresh.configure(["runs"], {"only": only})
    done = fresh.snakemake("cards", "generate", "results/report.html", "--cores", "2")
    assert done.returncode == 0, done.stderr
    assert (fresh.folder / "results/runs/only/README.md").is_file()
