"""`micro_batch_size: auto` on workers."""

from typing import Any

import pytest
import torch

from moray.train.history import HISTORY, read_history
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.train.step import gradients
from moray.workers.entry import Worker


def trained_rows(job: RunSpec) -> str:
    """What the first line of the history says of its micro-batches."""
    notes = [line["note"] for line in read_history(job.work / HISTORY) if "note" in line]
    (said,) = [part for part in notes[0].split("; ") if part.startswith("micro-batches")]
    return str(said)


@pytest.fixture
def running_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory runs out in a training, with more rows than are in the list."""
    limit = [1000]

    def short_of_memory(strategy: Any, batches: Any, *arguments: Any) -> torch.Tensor:
        if len(batches[0].input_ids) > limit[0]:
            torch.empty(2**48)
        return gradients(strategy, batches, *arguments)

    monkeypatch.setattr("moray.train.loop.gradients", short_of_memory)
    return limit


def test_a_cpu_takes_eight_rows(make_job: Any, alone: Worker) -> None:
    job = make_job(max_steps=1, global_batch_size=32, micro_batch_size="auto")
    train(job, alone)
    assert trained_rows(job) == "micro-batches of 8 rows"


def test_half_the_rows_are_taken_after_memory_ran_out_once(
    make_job: Any, alone: Worker, running_out_of_memory: list[int]
) -> None:
    job = make_job(max_steps=1, global_batch_size=32, micro_batch_size="auto")
    running_out_of_memory[0] = 3
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            train(job, alone)
    # Not a quarter.
    running_out_of_memory[0] = 4
    train(job, alone)
    assert trained_rows(job) == "micro-batches of 4 rows"


def test_a_number_is_not_halved(
    make_job: Any, alone: Worker, running_out_of_memory: list[int]
) -> None:
    job = make_job(max_steps=1, global_batch_size=32, micro_batch_size=8)
    running_out_of_memory[0] = 4
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        train(job, alone)
    running_out_of_memory[0] = 8
    train(make_job(max_steps=1, global_batch_size=32, micro_batch_size="auto"), alone)
    assert trained_rows(job) == "micro-batches of 8 rows"


def test_half_is_less_than_what_a_worker_had(
    make_job: Any, alone: Worker, running_out_of_memory: list[int]
) -> None:
    """A step has fewer rows than `auto` would take."""
    job = make_job(max_steps=1, global_batch_size=4, micro_batch_size="auto")
    running_out_of_memory[0] = 2
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        train(job, alone)
    train(job, alone)
    assert trained_rows(job) == "micro-batches of 2 rows"
