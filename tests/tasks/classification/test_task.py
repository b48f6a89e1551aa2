"""Losses and gradients of a batch are those of plain transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classified import DECODERS, ENCODERS, degree, opinions, prepare, things, with_labels
from transformers import AutoModelForSequenceClassification

from moray.config.schema.losses import Classification
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.rows.store import Rows, StoredRows
from moray.tasks.classification.task import class_weights_of
from moray.train.step import micro_batches
from moray.train.task import Task, task_of

Gradients = dict[str, torch.Tensor]


def figures(task: Task, folder: Path, rows: Rows) -> tuple[float, Gradients]:
    """The mean loss of rows in one batch, and its gradients."""
    module = task.loss_module(task.load(folder / "model", torch.float32, None)).train()
    loss = module(task.batch(rows, None)) / task.weight(rows)
    loss.backward()
    return loss.item(), _gradients(module.model)


def _gradients(model: Any) -> Gradients:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def plain_figures(folder: Path, rows: Rows) -> tuple[float, Gradients]:
    """The same by transformers, with its own loss, one text at a time."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder / "model").train()
    total = 0.0
    for row in rows:
        inputs = {"input_ids": row["tokens"][: row["length"]].astype(np.int64)}
        if "types" in (row.dtype.names or ()):
            inputs["token_type_ids"] = row["types"][: row["length"]].astype(np.int64)
        label = torch.from_numpy(np.array(row["label"])[None])
        tensors = {name: torch.from_numpy(value[None]) for name, value in inputs.items()}
        label = label if label.is_floating_point() else label.long()
        loss = model(**tensors, labels=label).loss / len(rows)
        loss.backward()
        total += loss.item()
    return total, _gradients(model)


def check_equal(folder: Path, count: int = 8) -> None:
    """Hold the figures of some rows, with one of padding among them, to plain ones."""
    task = task_of(folder / "labelled", {})
    rows = StoredRows(folder / "labelled", "train").rows[:count]
    padded = np.concatenate([rows[:3], np.zeros(1, rows.dtype), rows[3:]])
    (loss, gradients), (expected, others) = (
        figures(task, folder, padded),
        plain_figures(folder, rows),
    )
    assert loss == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == others.keys()
    norm = torch.stack([one.norm() for one in others.values()]).norm()
    for name, gradient in gradients.items():
        assert (gradient - others[name]).norm() < 1e-5 * norm, name


@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
def test_each_architecture_has_the_losses_and_gradients_of_transformers(
    name: str, tmp_path: Path
) -> None:
    check_equal(prepare(tmp_path, opinions(60), (ENCODERS | DECODERS)[name]()))


@pytest.mark.parametrize("name", ["BERT", "Llama"])
@pytest.mark.parametrize("label", [things, degree])
def test_each_problem_has_the_losses_of_transformers(name: str, label: Any, tmp_path: Path) -> None:
    check_equal(prepare(tmp_path, with_labels(label, 60), (ENCODERS | DECODERS)[name]()))


def test_micro_batches_are_sorted_by_length_and_have_the_losses_of_transformers(
    tmp_path: Path,
) -> None:
    folder = prepare(tmp_path, opinions(60), ENCODERS["BERT"]())
    task, rows = task_of(folder / "labelled", {}), StoredRows(folder / "labelled", "train").rows[:8]
    module = task.loss_module(task.load(folder / "model", torch.float32, None)).train()
    batches: list[Any] = micro_batches(task, rows, 3)
    widths = [batch.tokens.shape[1] for batch in batches]
    longest = sorted(rows["length"].tolist(), reverse=True)
    assert widths == [longest[0], longest[3], longest[6]]
    total = 0.0
    for batch in batches:
        loss = module(batch) / task.weight(rows)
        loss.backward()
        total += loss.item()
    expected, others = plain_figures(folder, rows)
    assert total == pytest.approx(expected, rel=1e-5)
    norm = torch.stack([one.norm() for one in others.values()]).norm()
    for name, gradient in _gradients(module.model).items():
        assert (gradient - others[name]).norm() < 1e-5 * norm, name


def test_two_texts_of_a_row_are_told_apart(tmp_path: Path) -> None:
    rows = [{**row, "text_pair": "a play"} for row in opinions(60)]
    folder = prepare(tmp_path, rows, ENCODERS["BERT"]())
    assert StoredRows(folder / "labelled", "train").rows["types"].any()
    check_equal(folder)


@pytest.mark.parametrize(
    ("label", "weights"),
    [
        (lambda words: ["bad", "good"]["great" in words or "fine" in words], {"good": 3.0}),
        (lambda words: ["bad", "good"]["great" in words or "fine" in words], "balanced"),
        (things, {"film": 2.0}),
        (things, "balanced"),
    ],
)
def test_class_weights_multiply_losses_as_pytorch_has_them(
    label: Any, weights: Any, tmp_path: Path
) -> None:
    folder = prepare(tmp_path, with_labels(label, 90), ENCODERS["BERT"]())
    manifest = read_manifest(folder / "labelled")
    found = class_weights_of(Classification(class_weights=weights), manifest)
    assert found is not None
    split = StoredRows(folder / "labelled", "train").rows
    rows, task = (
        split[:8],
        task_of(folder / "labelled", {"classification": {"class_weights": weights}}),
    )
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    inputs = {
        "input_ids": torch.from_numpy(rows["tokens"].astype(np.int64)),
        "token_type_ids": torch.from_numpy(rows["types"].astype(np.int64)),
        "attention_mask": torch.from_numpy(np.arange(16) < rows["length"][:, None]).long(),
    }
    logits = model(**inputs).logits
    if manifest["problem_type"].startswith("multi"):
        labels = torch.from_numpy(rows["label"])
        loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(found))(logits, labels)
        ones = split["label"].sum(0)
        balanced = (len(split) - ones) / ones
    else:
        labels = torch.from_numpy(rows["label"].astype(np.int64))
        loss = torch.nn.CrossEntropyLoss(torch.tensor(found), reduction="none")(
            logits, labels
        ).mean()
        # As scikit-learn's `compute_class_weight` has it.
        balanced = len(split) / (2 * np.bincount(split["label"]))
    assert figures(task, folder, rows)[0] == pytest.approx(loss.item(), rel=1e-5)
    plain = task.plain(
        folder / "model", folder / "model", rows, None, torch.device("cpu"), gradient=False
    )
    assert plain.loss == pytest.approx(loss.item(), rel=1e-5)
    if weights == "balanced":
        assert found == pytest.approx(balanced)
    else:
        assert sorted(found) == sorted([1.0, *weights.values()])


@pytest.mark.parametrize(
    ("label", "weights", "message"),
    [
        (degree, "balanced", "labels are numbers to predict"),
        (things, {"pie": 2.0}, "got pie, expected some of film, play"),
    ],
)
def test_class_weights_that_no_label_has_are_refused(
    label: Any, weights: Any, message: str, tmp_path: Path
) -> None:
    folder = prepare(tmp_path, with_labels(label, 60), ENCODERS["BERT"]())
    settings: Mapping[str, Any] = {"classification": {"class_weights": weights}}
    with pytest.raises(UserError, match=rf"^classification\.class_weights: {message}"):
        task_of(folder / "labelled", settings)


def test_a_model_of_other_labels_is_refused(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "a", with_labels(things, 60), ENCODERS["BERT"]())
    other = prepare(tmp_path / "b", opinions(60), ENCODERS["BERT"]())
    task = task_of(folder / "labelled", {})
    with pytest.raises(UserError, match=r"^model: its labels, single_label_classification, aren't"):
        task.loss_module(task.load(other / "model", torch.float32, None))
