"""The example of docs/tasks-rows.md is a task like those of the package."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from example_task import example, train_each
from fleet import losses, train_all
from transformers import BertConfig, BertForSequenceClassification

from moray.train.loop import train
from moray.train.spec import Part, RunSpec
from moray.workers.entry import Worker

# Whether a word has more of the letter b than of a.
WORDS = [
    (word, int(word.count("b") > 4))
    for word in (f"{number:09b}".translate({48: "a", 49: "b"}) for number in range(512))
]


@pytest.fixture
def job(make_job: Any, tmp_path: Path) -> RunSpec:
    splits = {"train": WORDS[::2], "validation": WORDS[1::4], "test": WORDS[3::4]}
    example.write_store(tmp_path / "store", splits)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=257,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    job: RunSpec = make_job(max_steps=40, global_batch_size=16, eval_steps=40)
    return replace(job, start=tmp_path / "model", parts=(Part("words", tmp_path / "store"),))


def test_it_trains(job: RunSpec, alone: Worker) -> None:
    train(job, alone)
    assert losses(job)[-1] < losses(job)[0] / 2
    assert losses(job, "eval_loss")[-1] < losses(job)[0]


@pytest.mark.long
def test_two_workers_have_the_losses_of_one(job: RunSpec, alone: Worker, tmp_path: Path) -> None:
    train(job, alone)
    both = replace(job, work=tmp_path / "both")
    both.work.mkdir()
    train_all([both], 2, "torchrun", tmp_path / "launch", train_each)
    assert losses(both) == pytest.approx(losses(job), rel=1e-5)
    assert losses(both, "eval_loss") == pytest.approx(losses(job, "eval_loss"), rel=1e-5)
