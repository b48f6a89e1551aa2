"""Reward models by the workflow, from pairs to the model's card."""

import json

import pytest
from project import ROOT, Project
from rewarded import samples_of
from transformers import AutoTokenizer, pipeline


@pytest.mark.release
def test_the_overlay_prefers_the_body_of_a_function(fresh: Project) -> None:
    overlay = "config/reward.yaml"
    fresh.config.write_text((ROOT / "config/config.yaml").read_text())
    targets = ("eval", "generate", "cards", "results/report.html")
    done = fresh.snakemake(*targets, "--cores", "2", "--configfile", overlay)
    assert done.returncode == 0, done.stderr
    run = fresh.folder / "results/runs/reward-of-functions"
    scores = json.loads((run / "eval.json").read_text())
    assert scores["base"]["accuracy"]["value"] == 0.5
    assert scores["tuned"]["accuracy"]["low"] > 0.52
    assert scores["tuned"]["accuracy"]["low"] > scores["longer_is_chosen"]["value"]
    judge = pipeline("text-classification", str(run / "model"), function_to_apply="none")
    stop = AutoTokenizer.from_pretrained(run / "model").eos_token
    for sample in samples_of(run)[:4]:
        for key in ("chosen", "rejected"):
            said = judge(sample["prompt"] + sample[key] + stop)[0]["score"]
            # Evaluation is in fp32 too.
            assert sample["tuned"][key] == pytest.approx(said, abs=1e-3)
    card = (run / "README.md").read_text()
    assert "It gives a text a reward." in card
    assert "pipeline_tag: text-classification" in card
    assert fresh.planned(*targets, "--configfile", overlay) == set()


@pytest.mark.release
def test_a_reward_model_is_made_of_a_run_on_text(fresh: Project) -> None:
    judged = {"source": "files", "path": "data/pairs.jsonl", "format": "reward"}
    fresh.configure(["datasets", "judged"], judged | {"test_share": 0.2, "validation_share": 0.1})
    heir = {"source": "run", "run": "only", "classes_of": "judged"}
    fresh.configure(["models", "heir"], heir)
    alone = {"train": {"launcher": "torchrun"}, "ray": {"num_workers": 1}}
    runs = {
        "only": {"model": "tiny", "dataset": "modules", **alone},
        "judge": {"model": "heir", "dataset": "judged", **alone},
    }
    fresh.configure(["runs"], runs)
    done = fresh.snakemake("eval", "generate", "cards", "--cores", "2")
    assert done.returncode == 0, done.stderr
    assert "model heir: new output layer for a number" in done.stderr
    assert json.loads((fresh.folder / "results/runs/judge/eval.json").read_text())["pairs"] > 0
    assert fresh.planned("eval", "generate", "cards") == set()
    fresh.configure(["runs", "only", "train", "max_steps"], 5)
    planned = fresh.planned("eval")
    assert {"base model heir", "finetune judge"} <= planned, planned
