"""Base and tuned on the same held-out pairs."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import job_maker
from pair_stores import EXECUTION
from plain_preference import log_probability, loss_of, pairs_of
from transformers import AutoModelForCausalLM

from moray.config.schema import Preference, result_keys
from moray.provenance.manifest import write_manifest
from moray.stages.evaluate import evaluate
from moray.storage.paths import folder_of, path_of
from moray.tasks.language.rows import StoredSplit
from moray.train.loop import train
from moray.train.restore import trained_model
from moray.workers.worker import Worker

CFG: dict[str, Any] = {
    "max_documents": None,
    "bootstrap_samples": 30,
    "confidence": 0.9,
    "precision": "fp32",
}
FIGURES = {
    "loss",
    "reward_margin",
    "reward_accuracy",
    "chosen_loss",
    "chosen_bits_per_byte",
    "chosen_accuracy",
}


@pytest.fixture(scope="module")
def tuned(preferences: Path, tmp_path_factory: pytest.TempPathFactory, alone: Worker) -> Path:
    """The model of 20 steps on the pairs."""
    folder = tmp_path_factory.mktemp("tuned")
    make = job_maker(preferences, folder, "reference", preference=result_keys(Preference()))
    job = make(max_steps=20, learning_rate=3e-3)
    train(job, alone)
    last = path_of(folder_of(job.work), 20)
    trained_model(job.start, last, None).save_pretrained(folder / "model")
    write_manifest(folder / "model")
    return folder / "model"


def run(preferences: Path, tuned: Path, output: Path, loss: Preference, **cfg: Any) -> Any:
    keys = CFG | {"preference": result_keys(loss)} | cfg
    base, pairs = preferences / "model", preferences / "pairs"
    evaluate("name", base, tuned, [pairs], output, keys, EXECUTION)
    return json.loads(output.read_text())


@pytest.mark.parametrize(
    "settings",
    [Preference(beta=0.5, label_smoothing=0.1), Preference(loss="ipo", beta=0.3)],
    ids=["dpo", "ipo"],
)
def test_figures_are_those_of_an_independent_computation(
    settings: Preference, preferences: Path, tuned: Path, tmp_path: Path
) -> None:
    result = run(preferences, tuned, tmp_path / "eval.json", settings)
    split = StoredSplit(preferences / "pairs", "test")
    pairs = [pair for row in split.rows for pair in pairs_of(row)]
    models = [AutoModelForCausalLM.from_pretrained(p) for p in (preferences / "model", tuned)]
    with torch.no_grad():
        before, after = (
            [[log_probability(model, one) for one in pair] for pair in pairs] for model in models
        )
    margins, losses = [], []
    for pair, old, new in zip(pairs, before, after, strict=True):
        ratios = [a - b for a, b in zip(new, old, strict=True)]
        margins.append(settings.beta * float(ratios[0] - ratios[1]))
        keys = result_keys(settings)
        losses.append(float(loss_of(ratios, [sum(mask) for _, mask in pair], keys)))
    chosen = [float(-new[0]) for new in after]
    tokens = sum(sum(mask) for (_, mask), _ in pairs)
    size = int(split.segments[::2, 3].sum())
    values = {name: interval["value"] for name, interval in result["tuned"].items()}
    assert values.keys() == FIGURES
    assert values["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert values["reward_margin"] == pytest.approx(np.mean(margins), rel=1e-3, abs=1e-5)
    assert values["reward_accuracy"] == np.mean([margin > 0 for margin in margins])
    assert values["chosen_loss"] == pytest.approx(sum(chosen) / tokens, rel=1e-5)
    bits = sum(chosen) / math.log(2) / size
    assert values["chosen_bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert (result["pairs"], result["resampled"]) == (len(pairs), "pairs")
    for interval in result["tuned"].values():
        assert interval["low"] <= interval["value"] <= interval["high"]


def test_of_the_base_margins_are_zero_and_ties_count_half(
    preferences: Path, tuned: Path, tmp_path: Path
) -> None:
    base = run(preferences, tuned, tmp_path / "eval.json", Preference())["base"]
    assert set(base["reward_margin"].values()) == {0.0}
    assert set(base["reward_accuracy"].values()) == {0.5}
    assert base["loss"]["value"] == pytest.approx(math.log(2))


def test_no_more_pairs_are_scored_than_asked_for(
    preferences: Path, tuned: Path, tmp_path: Path
) -> None:
    result = run(preferences, tuned, tmp_path / "eval.json", Preference(), max_documents=3)
    assert result["pairs"] == 3
