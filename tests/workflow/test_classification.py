"""Text classification, from rows and a model of a user to the report."""

import json

import pytest
import torch
from classified import write_bert, write_reviews
from pages import Parsed, runs_in
from project import ROOT, Project
from safetensors.torch import load_file
from transformers import pipeline

from moray.train.history import read_history


@pytest.mark.release
def test_a_run_goes_from_texts_and_labels_to_the_report(
    fresh: Project,
) -> None:
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
    targets = ("eval", "generate", "cards", "results/report.html")
    done = fresh.snakemake(*targets, "--cores", "2")
    assert done.returncode == 0, done.stderr
    given, made = (
        load_file(fresh.folder / folder / "model.safetensors")
        for folder in ("data/bert", "results/models/bert")
    )
    # Its classes have no names, so they are the numbers of the labels.
    assert all(torch.equal(value, made[key]) for key, value in given.items())
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


@pytest.mark.release
def test_the_overlay_tells_which_module_a_function_is_from(fresh: Project) -> None:
    overlay = "config/classification.yaml"
    fresh.config.write_text((ROOT / "config/config.yaml").read_text())
    done = fresh.snakemake("eval", "generate", "--cores", "2", "--configfile", overlay)
    assert done.returncode == 0, done.stderr
    run = fresh.folder / "results/runs/modules-of-functions"
    scores = json.loads((run / "eval.json").read_text())
    assert scores["base_is"] == "the most frequent label"
    for metric in ("accuracy", "f1_macro", "matthews_correlation"):
        assert scores["difference"][metric]["low"] > 0.3
    classify = pipeline("text-classification", str(run / "model"))
    for line in (run / "samples.jsonl").read_text().splitlines()[:4]:
        sample = json.loads(line)
        # The pipeline doesn't cut texts by itself.
        assert (
            classify(sample["text"], truncation=True, max_length=64)[0]["label"] == sample["tuned"]
        )
