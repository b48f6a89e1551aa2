"""Base and tuned on the same held-out answers, good and bad."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import execution_of, job_maker
from sklearn.metrics import roc_auc_score
from transformers import AutoModelForCausalLM

from moray.config.schema.base import result_keys
from moray.config.schema.losses import Kto
from moray.provenance.manifest import read_manifest, write_manifest
from moray.rows.store import StoredRows
from moray.stages.evaluate import evaluate
from moray.storage.interface import folder_of, path_of
from moray.tasks.kto.proofs import labels_of, losses_of
from moray.tasks.language.proofs.plain import log_probabilities
from moray.tasks.language.rows import Segment, StoredSplit
from moray.tasks.preference.proofs import pairs_of
from moray.tasks.preference.rows import in_pairs
from moray.train.checkpoint.load import trained_model
from moray.train.loop import train
from moray.workers.entry import Worker

SETTINGS = Kto(beta=0.5, desirable_weight=1.5)
CFG = {"bootstrap_samples": 30, "confidence": 0.9, "precision": "fp32"}


@pytest.fixture(scope="module")
def tuned(judgements: Path, tmp_path_factory: pytest.TempPathFactory, alone: Worker) -> Path:
    """The model of 20 steps on the answers."""
    folder = tmp_path_factory.mktemp("tuned")
    make = job_maker(judgements, folder, "reference", kto=result_keys(SETTINGS))
    job = make(max_steps=20, learning_rate=3e-3)
    train(job, alone)
    last = path_of(folder_of(job.work), 20)
    trained_model(job.start, last, None).save_pretrained(folder / "model")
    write_manifest(folder / "model")
    return folder / "model"


def run(judgements: Path, tuned: Path, output: Path, most: int | None = None) -> Any:
    keys = CFG | {"kto": result_keys(SETTINGS), "max_documents": most}
    base, store = judgements / "model", judgements / "pairs"
    evaluate("name", base, tuned, [store], output, keys, execution_of("evaluate"))
    return json.loads(output.read_text())


def test_the_reference_is_that_of_both_answers_alone(judgements: Path) -> None:
    assert read_manifest(judgements / "reference")["task"] == "kto"
    model = AutoModelForCausalLM.from_pretrained(judgements / "model").eval()
    for row in StoredRows(judgements / "reference", "train").rows[:6]:
        pairs = list(pairs_of(np.array([row])))
        with torch.no_grad():
            expected = [
                [float(log_probabilities(model, *one).sum()) for one in pair] for pair in pairs
            ]
        np.testing.assert_allclose(row["reference"][: len(pairs)], expected, rtol=1e-5)


def test_figures_are_those_of_an_independent_computation(
    judgements: Path, tuned: Path, tmp_path: Path
) -> None:
    result = run(judgements, tuned, tmp_path / "eval.json")
    split = StoredSplit(judgements / "pairs", "test")
    models = [AutoModelForCausalLM.from_pretrained(p) for p in (judgements / "model", tuned)]
    with torch.no_grad():
        before, after = (
            np.array(
                [
                    [float(log_probabilities(model, *one).sum()) for one in pair]
                    for pair in pairs_of(split.rows)
                ]
            )
            for model in models
        )
    (ratios, apart), labels = (after - before).T, np.array(labels_of(split.rows))
    both = [[*torch.from_numpy(one)] for one in (ratios, apart)]
    losses = losses_of(both[0], labels.tolist(), both[1], SETTINGS)
    rewards = SETTINGS.beta * ratios
    values = {name: interval["value"] for name, interval in result["tuned"].items()}
    means = [rewards[labels].mean(), rewards[~labels].mean()]
    own = split.segments[in_pairs(split.segments[:, Segment.DOCUMENT])[:, 0]]
    size = own[labels, Segment.BYTES].sum()
    assert result["kl"] == pytest.approx(max(0.0, apart.mean()), rel=1e-3, abs=1e-5)
    assert values["loss"] == pytest.approx(np.mean([float(loss) for loss in losses]), rel=1e-4)
    assert values["desirable_reward"] == pytest.approx(means[0], rel=1e-3, abs=1e-5)
    assert values["undesirable_reward"] == pytest.approx(means[1], rel=1e-3, abs=1e-5)
    assert values["reward_margin"] == pytest.approx(means[0] - means[1], rel=1e-3, abs=1e-5)
    assert values["reward_auroc"] == pytest.approx(roc_auc_score(labels, rewards), abs=1e-6)
    assert values["reward_accuracy"] == np.mean((rewards > 0) == labels)
    bits = -after[labels, 0].sum() / np.log(2) / size
    assert values["desirable_bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert (result["answers"], result["desirable"]) == (len(labels), labels.sum())
    assert result["resampled"] == "answers"
    for interval in result["tuned"].values():
        assert interval["low"] <= interval["value"] <= interval["high"]


def test_the_base_is_the_start(judgements: Path, tuned: Path, tmp_path: Path) -> None:
    result = run(judgements, tuned, tmp_path / "eval.json", most=12)
    base, good = result["base"], result["desirable"]
    assert result["answers"] == 12
    for name, value in (("reward_margin", 0.0), ("reward_auroc", 0.5), ("reward_accuracy", 0.5)):
        assert base[name]["value"] == value
    assert base["loss"]["value"] == pytest.approx((1.5 * good + 12 - good) / 24)
