"""A copy of the package with the tasks of the documentation, and without other tasks."""

import json
import shutil

import pytest
import torch
from classified import write_bert, write_reviews
from pages import Parsed, runs_in
from project import Project
from safetensors.torch import load_file
from slices import add_slice
from transformers import pipeline

from moray.train.history import read_history


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


@pytest.mark.long
def test_a_task_with_rows_of_its_own_goes_from_texts_and_labels_to_the_report(
    fresh: Project,
) -> None:
    add_slice("docs/tasks-rows.md", fresh)
    write_reviews(fresh.folder / "data/reviews.jsonl")
    write_bert(fresh.folder / "data/bert")
    reviews = {"source": "files", "path": "data/reviews.jsonl", "format": "classification"}
    fresh.configure(["datasets"], {"reviews": reviews | {"test_share": 0.3}})
    bert = {"source": "path", "path": "data/bert", "classes_of": "reviews"}
    fresh.configure(["models"], {"bert": bert})
    settings = {"max_steps": 60, "global_batch_size": 16, "learning_rate": 3e-3}
    fresh.configure(["defaults", "train"], settings | {"launcher": "torchrun", "logging_steps": 1})
    fresh.configure(["defaults", "data", "block_size"], 16)
    run = {"model": "bert", "dataset": "reviews", "train": {"precision": "fp32"}}
    alone, both = ({**run, "ray": {"num_workers": workers}} for workers in (1, 2))
    fresh.configure(["runs"], {"alone": alone, "both": both})
    targets = ("eval", "cards", "results/report.html")
    done = fresh.snakemake(*targets, "--cores", "2")
    assert done.returncode == 0, done.stderr
    given, made = (
        load_file(fresh.folder / folder / "model.safetensors")
        for folder in ("data/bert", "results/models/bert")
    )
    assert {key for key in given if not torch.equal(given[key], made[key])} == {"classifier.weight"}
    runs = {name: fresh.folder / "results/runs" / name for name in ("alone", "both")}
    scores = json.loads((runs["alone"] / "eval.json").read_text())
    base, tuned = (scores[name]["accuracy"] for name in ("base", "tuned"))
    assert base["high"] < 0.8 < tuned["low"]
    largest = max(one["texts"] for one in scores["by_class"]["tuned"]["classes"].values())
    assert tuned["value"] > largest / scores["texts"]
    losses = {
        name: [line["loss"] for line in read_history(folder / "history.jsonl") if "loss" in line]
        for name, folder in runs.items()
    }
    assert len(losses["both"]) == 60
    assert losses["both"] == pytest.approx(losses["alone"], rel=1e-4)
    classify = pipeline("text-classification", str(runs["both"] / "model"))
    assert [said["label"] for said in classify(["it was great", "the dull play"])] == ["1", "0"]
    assert "accuracy" in (runs["both"] / "README.md").read_text()
    report = (fresh.folder / "results/report.html").read_text()
    assert "accuracy" in Parsed(report).text
    assert "Confusion matrix" in runs_in(report)["alone"]["html"]
    assert fresh.planned(*targets) == set()


@pytest.mark.long
def test_the_folder_of_a_task_can_be_removed(fresh: Project) -> None:
    for name in ("images", "preference"):
        shutil.rmtree(fresh.folder / "src/moray/tasks" / name)
    only = {"model": "tiny", "dataset": "modules", "train": {"launcher": "torchrun"}}
    fresh.configure(["runs"], {"only": only})
    done = fresh.snakemake("cards", "generate", "results/report.html", "--cores", "2")
    assert done.returncode == 0, done.stderr
    assert (fresh.folder / "results/runs/only/README.md").is_file()
