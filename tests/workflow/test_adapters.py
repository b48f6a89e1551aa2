"""Adapters that are exported alone, through the whole workflow."""

import json
import shutil

import pytest
import torch
from project import Project

from moray.model.load import load_model
from moray.provenance.manifest import damaged_files

ALONE = {"adapter": {"rank": 4}, "export": {"merge_adapter": False}}


@pytest.mark.release
def test_a_chain_of_adapters_is_trained_scored_and_continued_from(fresh: Project) -> None:
    fresh.configure(["defaults", "train", "launcher"], "torchrun")
    fresh.configure(["runs", "adapted"], {"model": "tiny", "dataset": "functions", **ALONE})
    second = {"model": {"run": "adapted"}, "dataset": "functions"}
    fresh.configure(["runs", "again"], second | ALONE)
    further = {**second, **ALONE, "adapter": {"rank": 4, "create_new_adapter": False}}
    fresh.configure(["runs", "further"], further)
    fresh.configure(["runs", "base"], None)
    fresh.configure(["runs", "tuned"], None)
    done = fresh.snakemake("--cores", "8", "eval", "generate")
    assert done.returncode == 0, done.stderr
    results = fresh.folder / "results"
    for run in ("adapted", "again", "further"):
        folder = results / "runs" / run / "model"
        assert damaged_files(folder) == []
        assert not list(folder.glob("model*.safetensors"))
        scores = json.loads((folder.parent / "eval.json").read_text())
        assert scores["tuned"]["loss"]["value"] != scores["base"]["loss"]["value"]
        assert (folder.parent / "samples.jsonl").read_text().count("\n") == 2
    # What one run ended with is what the next one began with.
    first, again, more = (
        json.loads((results / "runs" / run / "eval.json").read_text())
        for run in ("adapted", "again", "further")
    )
    assert again["base"] == more["base"] == first["tuned"]
    # One adapter, on the base of the first.
    manifest = json.loads((results / "runs/further/model/manifest.json").read_text())
    assert manifest["base"]["path"] == "../../../models/tiny"
    tiny, adapted, last = (
        load_model(folder).state_dict()["model.layers.0.self_attn.q_proj.weight"]
        for folder in (
            results / "models/tiny",
            results / "runs/adapted/model",
            results / "runs/again/model",
        )
    )
    assert not torch.equal(tiny, adapted)
    assert not torch.equal(adapted, last)

    assert fresh.planned() == set()
    again_only = {"export again", "evaluate again", "generate again"}
    for export in ({"merge_adapter": True}, {"merge_adapter": False, "dtype": "bf16"}):
        fresh.configure(["runs", "again", "export"], export)
        assert fresh.planned() == again_only
    fresh.configure(["runs", "again", "export"], ALONE["export"])
    # The base is needed to score either run, though neither is made from it directly again.
    shutil.rmtree(results / "models/tiny")
    (results / "runs/again/eval.json").unlink()
    assert {"base model tiny", "evaluate again"} <= fresh.planned("results/runs/again/eval.json")
