"""Losses and gradients of a batch are those of plain transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classified import DECODERS, ENCODERS
from tagged import prepare, sentences
from transformers import AutoModelForTokenClassification, AutoTokenizer

from moray.corpus.dataset import read_documents, tags_of, words_of
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.rows.store import StoredRows
from moray.train.task import task_of

QUICK = {"BERT", "ModernBERT", "Llama"}


def plain_figures(folder: Path, count: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the first texts by transformers, as its `run_ner.py` labels words."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model: Any = AutoModelForTokenClassification.from_pretrained(folder / "model").train()
    names = read_manifest(folder / "labelled")["label_names"]
    documents = next(read_documents(folder / "dataset/train.parquet"))[:count]
    found = tokenizer(
        [words_of(one) for one in documents],
        is_split_into_words=True,
        padding=True,
        return_tensors="pt",
    )
    labels = torch.full(found["input_ids"].shape, -100)
    for place, document in enumerate(documents):
        before = None
        for position, word in enumerate(found.word_ids(place)):
            if word is not None and word != before:
                labels[place, position] = names.index(tags_of(document)[word])
            before = word
    loss = model(**found, labels=labels).loss
    loss.backward()
    return loss.item(), _gradients(model)


def _gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.release])
        for name in (*ENCODERS, *DECODERS)
        # Transformers has no such Gemma 3.
        if name != "Gemma 3"
    ],
)
def test_each_architecture_has_the_losses_and_gradients_of_transformers(
    name: str, tmp_path: Path
) -> None:
    folder = prepare(tmp_path, sentences(60), (ENCODERS | DECODERS)[name]())
    task = task_of(folder / "labelled", {})
    rows = StoredRows(folder / "labelled", "train").rows[:8]
    padded = np.concatenate([rows[:3], np.zeros(1, rows.dtype), rows[3:]])
    module = task.loss_module(task.load(folder / "model", torch.float32, None)).train()
    loss = module(task.batch(padded, None)) / task.weight(padded)
    loss.backward()
    expected, others = plain_figures(folder, 8)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    gradients = _gradients(module.model)
    assert gradients.keys() == others.keys()
    norm = torch.stack([one.norm() for one in others.values()]).norm()
    for key, gradient in gradients.items():
        assert (gradient - others[key]).norm() < 1e-5 * norm, key


def test_a_model_of_other_tags_is_refused(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "a", sentences(60), ENCODERS["BERT"]())
    task = task_of(folder / "labelled", {})
    with pytest.raises(UserError, match=r"^model: its classes aren't the tags of the dataset"):
        task.loss_module(task.load(folder / "given", torch.float32, None))
