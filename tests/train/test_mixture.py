"""Runs on several datasets in fixed shares."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import check_resumption
from fleet import losses, train_all

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.config.schema.train import Train
from moray.corpus.dataset import Document
from moray.corpus.documents import write_dataset
from moray.rows.store import StoredRows
from moray.tasks.language.rows import is_trained
from moray.tasks.language.sources.python_stdlib import modules
from moray.tasks.language.tokenize import tokenize
from moray.train.history import HISTORY, read_history
from moray.train.identity import identity_of
from moray.train.loop import train
from moray.train.spec import Part, RunSpec
from moray.train.step import mixture_of
from moray.workers.entry import Worker

SHARES = {"functions": 0.7, "modules": 0.3}

MakeMixed = Callable[..., RunSpec]


@pytest.fixture(scope="module")
def whole_modules(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of modules, in which every token is trained, for the model of `small`."""
    folder = tmp_path_factory.mktemp("modules")
    rows = [row for row, _ in zip(modules(), range(16), strict=False)]
    splits = ["test", "validation", *["train"] * 6]
    pairs = ((splits[number % 8], Document(**row)) for number, row in enumerate(rows))
    write_dataset(folder / "dataset", pairs, "text", {"source": "test"})
    cfg = {"format": "text", **result_keys(Data(block_size=64))}
    tokenize(folder / "dataset", small / "model", folder / "tokens", cfg)
    return folder / "tokens"


@pytest.fixture
def parts(small: Path, whole_modules: Path) -> tuple[Part, ...]:
    stores = {"functions": small / "tokens", "modules": whole_modules}
    return tuple(Part(name, stores[name], share) for name, share in SHARES.items())


@pytest.fixture
def make_mixed(make_job: Any, parts: tuple[Part, ...]) -> MakeMixed:
    return lambda work, **settings: replace(make_job(work, **settings), parts=parts)


def test_the_trained_tokens_have_the_shares(parts: tuple[Part, ...]) -> None:
    mixture = mixture_of(parts, Train(global_batch_size=8))
    stored = [StoredRows(part.store, "train").rows for part in parts]
    # Rows of functions are trained only in part.
    assert is_trained(stored[0]).mean() < 0.9 < is_trained(stored[1]).mean()
    trained = np.zeros(2)
    for step in range(200):
        stores, rows = mixture.rows(step)
        for number in range(2):
            trained[number] += is_trained(stored[number][rows[stores == number]]).sum()
    assert trained[0] / trained.sum() == pytest.approx(0.7, abs=0.01)


def test_the_held_out_loss_is_the_mean_over_datasets_by_their_shares(
    make_mixed: MakeMixed, alone: Worker
) -> None:
    job = make_mixed("mixed")
    train(job, alone)
    lines = list(read_history(job.work / HISTORY))
    scored = [line for line in lines if "eval_loss" in line]
    assert [line["step"] for line in scored] == [4, 8]
    for line in scored:
        each = line["eval_losses"]
        assert each["functions"] != each["modules"]
        expected = 0.7 * each["functions"] + 0.3 * each["modules"]
        assert line["eval_loss"] == pytest.approx(expected)
    notes = [line["note"] for line in lines if "note" in line]
    assert any(note.startswith("mixture: functions 70.0%, each row seen ") for note in notes)


def test_a_resumed_run_ends_with_the_same_bits(make_mixed: MakeMixed, alone: Worker) -> None:
    check_resumption(make_mixed, alone, 4)


@pytest.mark.release
def test_two_workers_have_the_losses_of_one(
    make_mixed: MakeMixed, alone: Worker, tmp_path: Path
) -> None:
    one, two = make_mixed("one"), make_mixed("two")
    train(one, alone)
    train_all([two], 2, "torchrun", tmp_path / "launch")
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert losses(two, "eval_loss") == pytest.approx(losses(one, "eval_loss"), rel=1e-5)


@pytest.mark.release
def test_streamed_rows_give_the_losses_of_rows_in_memory(
    make_mixed: MakeMixed, tmp_path: Path
) -> None:
    memory = make_mixed("memory")
    streamed = make_mixed("streamed")
    urls = tuple(replace(part, rows_url=str(part.store)) for part in streamed.parts)
    streamed = replace(streamed, parts=urls)
    # A single worker leaves a core to the tasks that read.
    train_all([memory, streamed], 1, "ray", tmp_path / "launch")
    assert losses(streamed) == losses(memory)


def test_other_shares_make_another_run(parts: tuple[Part, ...], small: Path) -> None:
    others = tuple(replace(part, share=0.5) for part in parts)
    prints = {
        identity_of(RunSpec("name", small / "model", some, Train())).fingerprint
        for some in (parts, others, parts[:1], parts[1:])
    }
    assert len(prints) == 4
