"""The whole workflow on a small experiment: what lies where, and that it is what it says."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from project import Project
from transformers import AutoModelForCausalLM, AutoTokenizer

from moray.provenance.lineage import results_below, verify

pytestmark = pytest.mark.long


def test_every_result_is_in_its_place(finished: Project) -> None:
    results = finished.folder / "results"
    for dataset in ("modules", "functions"):
        folder = results / "datasets" / dataset
        for name in ("train.parquet", "validation.parquet", "test.parquet", "dataset.json"):
            assert (folder / name).is_file()
    assert (results / "models/tiny/manifest.json").is_file()
    for run in ("base", "tuned"):
        for name in ("history.jsonl", "train.json", "eval.json", "samples.jsonl"):
            assert (results / "runs" / run / name).is_file()
    assert {path.parent.name for path in finished.folder.glob("logs/*/*.log")} == {
        "download",
        "base_model",
        "tokenize",
        "finetune",
        "export",
        "evaluate",
        "generate",
    }


def test_an_exported_model_loads_and_writes(finished: Project) -> None:
    folder = finished.folder / "results/runs/tuned/model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("def ", return_tensors="pt").input_ids
    written = model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert written.shape == (1, prompt.shape[1] + 5)


def test_an_exported_model_has_the_digests_of_its_manifest(finished: Project) -> None:
    folder = finished.folder / "results/runs/tuned/model"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    written_after = {"manifest.json", "lineage.json", "proof.json"}
    assert set(files) == {path.name for path in folder.iterdir()} - written_after
    for name, listed in files.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == listed["sha256"]


def test_a_run_starts_from_the_weights_of_the_run_that_it_names(finished: Project) -> None:
    runs = finished.folder / "results/runs"
    lineage = json.loads((runs / "tuned/model/manifest.json").read_text())["start"]
    assert lineage["run"] == "base"
    assert lineage["start"]["model"]["source"] == "scratch"
    base, tuned, tiny = (
        AutoModelForCausalLM.from_pretrained(folder).model.embed_tokens.weight
        for folder in (
            runs / "base/model",
            runs / "tuned/model",
            finished.folder / "results/models/tiny",
        )
    )
    assert torch.dist(base, tuned) < torch.dist(tiny, tuned)


def test_the_history_has_a_line_for_each_step_and_a_last_evaluation(finished: Project) -> None:
    path = finished.folder / "results/runs/base/history.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["note"].startswith("trained: all ")
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all(one["holds"] for line in lines for one in line.get("proof", ()))
    assert [line["step"] for line in lines if "eval_loss" in line] == [4]
    assert {"loss", "learning_rate", "grad_norm", "tokens_per_second"} <= set(steps[0])


def test_base_and_tuned_are_scored_on_the_same_rows(finished: Project) -> None:
    scores = json.loads((finished.folder / "results/runs/tuned/eval.json").read_text())
    for model in ("base", "tuned"):
        assert set(scores[model]) == {"loss", "perplexity", "bits_per_byte", "accuracy"}
        for figure in scores[model].values():
            assert figure["low"] <= figure["value"] <= figure["high"]
    # A run's base is the model that the other run has exported.
    assert scores["tuned"]["bits_per_byte"]["value"] < scores["base"]["bits_per_byte"]["value"]


def test_all_links_from_the_models_to_the_sources_hold(
    finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished.folder)
    found = verify(results_below(Path("results")))
    assert (found.broken, found.missing) == ([], [])
    # Two datasets, the base, two stores, two models and their scores.
    assert len(found.checked) == 9
    lineage = json.loads(Path("results/runs/tuned/model/lineage.json").read_text())
    assert {"train", "code", "software", "machine"} <= set(lineage["training"])
    assert lineage["datasets"]["functions"]["source"] == "files"


def test_nothing_is_left_to_do(finished: Project) -> None:
    done = finished.snakemake("finetune", "--cores", "8")
    assert "Nothing to be done" in done.stderr + done.stdout
