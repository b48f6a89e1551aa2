"""What is done to a module before it is trained, and that it changes nothing but rounding."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tensors_of
from fleet import losses

from moray.config.schema import Adapter
from moray.errors import UserError
from moray.train.checkpoints import checkpoint
from moray.train.history import HISTORY, read_history
from moray.train.job import Job
from moray.train.loop import train
from moray.workers.worker import Worker


def note_of(job: Job) -> str:
    note: str = next(line["note"] for line in read_history(job.work / HISTORY) if "note" in line)
    return note


def test_gradient_checkpointing_changes_no_bit(make_job: Any, alone: Worker) -> None:
    plain, checkpointed = make_job("plain"), make_job("again", gradient_checkpointing=True)
    train(plain, alone)
    train(checkpointed, alone)
    assert losses(checkpointed) == losses(plain)


def test_compiled_blocks_change_nothing_but_rounding(make_job: Any, alone: Worker) -> None:
    plain, compiled = make_job("plain", compile=False), make_job("compiled", compile=True)
    assert not train(plain, alone)["compiled"]
    assert train(compiled, alone)["compiled"]
    assert note_of(plain).endswith("; blocks are not compiled: compile: false")
    assert note_of(compiled).endswith("; blocks are compiled")
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    assert losses(compiled, "eval_loss") == pytest.approx(losses(plain, "eval_loss"), rel=1e-4)
    assert list(compiled.cache.rglob("*.so"))


def test_four_bits_are_refused_where_there_is_no_gpu(make_job: Any, alone: Worker) -> None:
    job = make_job(adapter=Adapter(quantize_base="4bit"))
    with pytest.raises(UserError, match=r"^adapter\.quantize_base: got 4bit on a cpu"):
        train(job, alone)


def test_adapters_leave_the_base_as_it_was(make_job: Any, alone: Worker) -> None:

    job = make_job(adapter=Adapter(rank=2))
    train(job, alone)
    saved = tensors_of(checkpoint.path_of(checkpoint.folder_of(job.work), 8))
    assert saved
    assert all(".lora_" in name for name in saved)


def test_the_rows_must_fit_the_model(make_job: Any, alone: Worker, small: Path) -> None:
    job = replace(make_job(), start=small / "tokens")
    with pytest.raises(UserError, match="got no causal language model"):
        train(job, alone)


@pytest.mark.parametrize("kind", ["use_rslora", "use_dora"])
def test_kinds_of_adapters_train(kind: str, make_job: Any, alone: Worker) -> None:
    job = make_job(adapter=Adapter(rank=2, **{kind: True}))
    train(job, alone)
    assert losses(job)[-1] < losses(job)[0]
    assert torch.isfinite(torch.tensor(losses(job))).all()
