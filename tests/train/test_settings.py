"""Keys of the `train` section that show in what a run does, not in its losses."""

import gzip
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fleet import losses
from transformers.models.llama.modeling_llama import LlamaMLP

from moray.config.schema.train import Train
from moray.train.history import HISTORY, read_history
from moray.train.loop import train
from moray.train.step import feeds
from moray.train.strategies import ddp, deepspeed, fsdp2, make_strategy
from moray.workers.entry import Worker


def steps(job: Any, key: str) -> list[int]:
    """The steps whose lines of the history have a key."""
    return [line["step"] for line in read_history(job.work / HISTORY) if key in line]


def test_lines_evaluations_and_checkpoints_come_at_their_steps(
    make_job: Any, alone: Worker
) -> None:
    job = make_job(logging_steps=3, eval_steps=5, save_steps=2, save_total_limit=3)
    train(job, alone)
    # A step that is evaluated has a line too; after the last step, all of it is due.
    assert steps(job, "loss") == [3, 5, 6, 8]
    assert steps(job, "eval_loss") == [5, 8]
    kept = sorted(path.name for path in (job.work / "checkpoints").iterdir())
    assert kept == ["step-00000004", "step-00000006", "step-00000008"]


@pytest.mark.parametrize("num_epochs", [0.5, pytest.param(2, marks=pytest.mark.long)])
def test_without_max_steps_a_run_has_so_many_epochs(
    make_job: Any, alone: Worker, num_epochs: float
) -> None:
    job = make_job(max_steps=None, num_epochs=num_epochs, global_batch_size=4)
    done = train(job, alone)["steps"]
    last = [line for line in read_history(job.work / HISTORY) if "epoch" in line][-1]
    rows = done * 4 / last["epoch"]
    assert done == math.ceil(round(num_epochs * rows) / 4)


@pytest.mark.long
def test_a_profile_has_so_many_steps_and_changes_nothing(make_job: Any, alone: Worker) -> None:
    plain, profiled = make_job("plain"), make_job("profiled", profile={"steps": 2})
    for job in (plain, profiled):
        train(job, alone)
    assert losses(profiled) == losses(plain)
    with gzip.open(profiled.work / "profile/worker-0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event["name"].startswith("ProfilerStep#") for event in events) == 2
    assert "aten::mm" in {event["name"] for event in events}
    assert not (plain.work / "profile").exists()


def test_the_seed_decides_the_order_of_the_samples(make_job: Any, alone: Worker) -> None:
    jobs = [make_job(f"seed-{seed}", seed=seed, max_steps=1) for seed in (0, 1)]
    for job in jobs:
        train(job, alone)
    assert losses(jobs[0]) != losses(jobs[1])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_forward_pass_is_in_the_precision_of_the_config(
    make_job: Any, alone: Worker, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    kinds, forward = set(), LlamaMLP.forward

    def looked_at(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = forward(self, x)
        kinds.add(result.dtype)
        return result

    monkeypatch.setattr(LlamaMLP, "forward", looked_at)
    train(make_job(max_steps=1, precision=precision), alone)
    assert (torch.bfloat16 in kinds) is (precision == "bf16")


@pytest.mark.parametrize(("checkpointing", "times"), [(False, 1), (True, 2)])
def test_with_gradient_checkpointing_the_backward_pass_computes_blocks_again(
    make_job: Any,
    alone: Worker,
    monkeypatch: pytest.MonkeyPatch,
    checkpointing: bool,
    times: int,
) -> None:
    calls, forward = 0, LlamaMLP.forward

    def counted(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += x.requires_grad
        result: torch.Tensor = forward(self, x)
        return result

    monkeypatch.setattr(LlamaMLP, "forward", counted)
    settings = {"max_steps": 3, "micro_batch_size": 8, "gradient_checkpointing": checkpointing}
    train(make_job(**settings), alone)
    # Two blocks, a pass in each of three steps.
    assert calls == times * 2 * 3


@pytest.mark.parametrize(("size", "batches"), [(8, 1), (3, 3)])
def test_a_forward_pass_takes_the_rows_of_a_micro_batch(
    make_job: Any, alone: Worker, monkeypatch: pytest.MonkeyPatch, size: int, batches: int
) -> None:
    counts = []

    def counted(*arguments: Any) -> Iterator[Any]:
        for feed in feeds(*arguments):
            counts.append(len(feed.batches))
            yield feed

    monkeypatch.setattr("moray.train.loop.feeds", counted)
    train(make_job(max_steps=2, micro_batch_size=size), alone)
    assert counts == [batches, batches]


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("ddp", ddp.strategy),
        ("fsdp2", fsdp2.strategy),
        ("deepspeed", deepspeed.strategy),
    ],
)
def test_the_strategy_is_that_of_the_config(name: Any, strategy: type, alone: Worker) -> None:
    assert type(make_strategy(Train(strategy=name), alone)) is strategy
