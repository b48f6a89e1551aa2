"""What is said of two classifiers, by their log-probabilities of held-out rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moray.evaluate.classification import Classifier, evaluation_of
from moray.provenance.manifest import write_manifest
from moray.rows.store import RowsWriter, describe, write_groups

RECORD = np.dtype([("label", "<u4")])
LABELS = [0, 0, 0, 1, 1, 2]
CFG = {"max_documents": None, "bootstrap_samples": 20, "confidence": 0.9, "precision": "fp32"}


def never(*arguments: object) -> Any:
    raise AssertionError("workers were not to be started")


def answers(predicted: list[int]) -> dict[int, Any]:
    """Nearly sure of each prediction."""
    logits = torch.eye(3)[predicted] * 3
    return dict(enumerate(logits.log_softmax(-1).numpy()))


def test_figures_and_classes_are_of_the_answers_of_all_workers(tmp_path: Path) -> None:
    rows = np.zeros(len(LABELS), RECORD)
    rows["label"] = LABELS
    with RowsWriter(tmp_path, "test") as writer:
        writer.add(rows, weight=len(rows))
        splits = {"test": writer.facts()}
    write_groups(tmp_path, "test", map(str, range(len(LABELS))))
    names = ["a", "b", "c"]
    write_manifest(tmp_path, record=describe(RECORD), label_names=names, splits=splits)
    classifier = Classifier("texts", never, never, never, tokens=1)
    models = {"base": tmp_path, "tuned": tmp_path}
    evaluation = evaluation_of(classifier, models, (tmp_path,), CFG)
    tuned, base = answers([0, 0, 1, 1, 1, 0]), answers([2] * len(LABELS))
    results = [
        {"base": {n: base[n] for n in share}, "tuned": {n: tuned[n] for n in share}}
        for share in ([1, 3, 5], [0, 2, 4])
    ]
    found = evaluation.scores(results)
    assert (found["texts"], found["resampled"]) == (6, "texts")
    assert found["base"]["accuracy"]["value"] == pytest.approx(1 / 6)
    assert found["difference"]["accuracy"]["value"] == pytest.approx(3 / 6)
    sure = torch.nn.functional.cross_entropy(torch.tensor([[3.0, 0, 0]]), torch.tensor([0]))
    assert found["tuned"]["loss"]["value"] == pytest.approx(float(sure) + 3 * 2 / 6)
    of_tuned = found["by_class"]["tuned"]
    assert of_tuned["confusion"] == [[2, 1, 0], [0, 2, 0], [1, 0, 0]]
    assert of_tuned["classes"] == {
        "a": {"texts": 3, "recall": pytest.approx(2 / 3), "precision": pytest.approx(2 / 3)},
        "b": {"texts": 2, "recall": 1.0, "precision": pytest.approx(2 / 3)},
        "c": {"texts": 1, "recall": 0.0, "precision": None},
    }
