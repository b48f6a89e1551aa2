"""Token classification by the workflow, on names in the standard library."""

import json

import pytest
from pages import runs_in
from project import ROOT, Project
from transformers import pipeline


@pytest.mark.release
def test_the_overlay_tells_names_in_code(fresh: Project) -> None:
    overlay = "config/token-classification.yaml"
    fresh.config.write_text((ROOT / "config/config.yaml").read_text())
    targets = ("eval", "generate", "cards", "results/report.html")
    done = fresh.snakemake(*targets, "--cores", "2", "--configfile", overlay)
    assert done.returncode == 0, done.stderr
    run = fresh.folder / "results/runs/names-in-code"
    scores = json.loads((run / "eval.json").read_text())
    assert scores["base_is"] == "the most frequent tag"
    for metric in ("precision", "recall", "f1"):
        assert scores["difference"][metric]["low"] > 0.5
    tagger = pipeline("token-classification", str(run / "model"), ignore_labels=[])
    tagger.tokenizer.model_max_length = 128
    for line in (run / "samples.jsonl").read_text().splitlines()[:4]:
        sample = json.loads(line)
        text, place, starts = sample["text"], 0, []
        for word in sample["tokens"]:
            starts.append(place)
            place += len(word) + 1
        # The first token of a word begins with the space before it.
        said = {one["start"] + (text[one["start"]] == " "): one["entity"] for one in tagger(text)}
        assert [said.get(start, "O") for start in starts] == sample["tuned"]
    page = runs_in((fresh.folder / "results/report.html").read_text())["names-in-code"]["html"]
    assert "F1 of each label" in page
    assert "B-PARAMETER" in page
    assert fresh.planned(*targets, "--configfile", overlay) == set()
