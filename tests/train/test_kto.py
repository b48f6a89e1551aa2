"""Runs on good and bad answers: an independent computation's losses, under engines and layouts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import check_resumption
from engines import LORA, ON_TWO, check_losses, jobs_of, losses_alone, workers_of
from fleet import losses, train_all
from jobs import Make, job_maker
from plain import kto_losses_one_by_one

from moray.config.schema.base import result_keys
from moray.config.schema.losses import Kto
from moray.errors import UserError
from moray.rows.store import Rows, StoredRows
from moray.tasks.kto.task import AnswerBatch, KtoLoss, make_answer_batch
from moray.train.loop import train
from moray.train.step import micro_batches
from moray.train.task import task_of
from moray.workers.entry import Worker

RUN = {
    "max_steps": 8,
    "global_batch_size": 16,
    "learning_rate": 1e-3,
    "eval_steps": 4,
    "save_steps": 8,
}
SETTINGS = Kto(beta=0.3, desirable_weight=1.2, undesirable_weight=0.7)


@pytest.fixture(scope="module")
def make_job(judgements: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Make]:
    """Makes `job_maker`s by the settings of the loss."""

    def make(settings: Kto = SETTINGS) -> Make:
        folder = tmp_path_factory.mktemp("jobs")
        return job_maker(judgements, folder, "reference", kto=result_keys(settings))

    return make


def test_losses_are_those_of_plain_transformers_with_both_models(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    job = make_job()(**RUN | {"max_steps": 8, "micro_batch_size": 5, "learning_rate": 3e-3})
    train(job, alone)
    expected = kto_losses_one_by_one(job)
    assert len(expected) == 8
    assert losses(job) == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < 0.95 * expected[0]


def test_a_step_has_one_estimate_of_the_kl_divergence_and_clamps_it(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    """The ratios of all other documents' answers in a step count, however it is divided."""
    job = make_job()()
    task = task_of(job.store, job.task_settings)
    model = task.load(job.start, torch.float32, None)
    module = task.loss_module(model)
    assert isinstance(module, KtoLoss)
    rows = StoredRows(job.store, "train").rows[:7]
    batches = [make_answer_batch(some) for some in np.array_split(rows, 3)]
    module.begin_step(batches, task.weight(rows))
    # The reference.
    assert float(module.kl) == pytest.approx(0, abs=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        far = [module.ratios(batch.other) for batch in batches]
        estimate = float(torch.cat(far).mean())
        for size in (1, 2, 7):
            module.begin_step(micro_batches(task, rows, size), task.weight(rows))
            assert float(module.kl) == pytest.approx(max(estimate, 0), rel=1e-5, abs=1e-6)
    assert estimate < 0
    for batch in batches:
        batch.other.reference.sub_(40.0)
    module.begin_step(batches, task.weight(rows))
    assert float(module.kl) == pytest.approx(estimate + 40, rel=1e-5)
    assert not module.kl.requires_grad


@pytest.fixture(scope="module")
def alone_losses(make_job: Callable[..., Make], alone: Worker) -> dict[str, list[float]]:
    return losses_alone(make_job(), alone, RUN)


@pytest.mark.parametrize(
    ("launcher", "layouts", "engines"),
    [
        pytest.param("torchrun", ("2 x 4 x 2",), ("ddp", "fsdp2"), marks=pytest.mark.long),
        pytest.param("torchrun", ("1 x 16",), ON_TWO, marks=pytest.mark.release),
        pytest.param("torchrun", ("2 x 8", "2 x 4 x 2", LORA), ON_TWO, marks=pytest.mark.release),
        pytest.param("torchrun", ("4 x 4",), ON_TWO, marks=pytest.mark.release),
        pytest.param("ray", ("2 x 8", LORA), ON_TWO, marks=pytest.mark.release),
    ],
)
def test_losses_are_those_of_a_single_process_at_each_step(
    launcher: str,
    layouts: tuple[str, ...],
    engines: Sequence[str],
    make_job: Callable[..., Make],
    alone_losses: dict[str, list[float]],
    tmp_path: Path,
) -> None:
    jobs = jobs_of(make_job(), engines, layouts, launcher, RUN)
    train_all([*jobs.values()], workers_of(layouts), launcher, tmp_path / "workers")
    check_losses(jobs, alone_losses)


def test_a_resumed_run_ends_with_the_same_bits(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    check_resumption(make_job(), alone, 4)


def test_a_reference_of_another_model_stops_a_run(
    make_job: Callable[..., Make], alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(rows: Rows) -> AnswerBatch:
        batch = make_answer_batch(rows)
        own = replace(batch.own, reference=batch.own.reference * 1.01)
        return replace(batch, own=own)

    monkeypatch.setattr("moray.tasks.kto.task.make_answer_batch", scaled)
    with pytest.raises(UserError, match="loss before the first step: "):
        train(make_job()(max_steps=1), alone)
