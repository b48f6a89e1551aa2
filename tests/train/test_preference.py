"""Runs on pairs: the losses of an independent computation, under every engine and layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tensors_of
from fleet import losses, train_all
from jobs import Make, job_maker
from plain_preference import preference_losses_one_by_one

from moray.config.schema.base import result_keys
from moray.config.schema.train import Adapter, Preference
from moray.storage.folder import FolderStorage
from moray.storage.interface import folder_of, path_of
from moray.train import checkpoints
from moray.train.job import Job
from moray.train.loop import train
from moray.train.saver import Saver
from moray.workers.entry import Worker

Jobs = dict[tuple[str, str], Job]

SETTINGS = {
    "dpo": Preference(),
    "dpo, smoothed": Preference(label_smoothing=0.2, beta=0.5),
    "ipo": Preference(loss="ipo", beta=0.2),
}
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp2": {"strategy": "fsdp2"},
    "zero-1": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 1}},
    "zero-2": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 2}},
    "zero-3": {"strategy": "deepspeed", "deepspeed": {"zero_stage": 3}},
}
LORA = "2 x 4 x 2 with adapters"
# Workers, and rows of a micro-batch.
LAYOUTS = {"1 x 16": (1, 16), "2 x 8": (2, 8), "2 x 4 x 2": (2, 4), "4 x 4": (4, 4), LORA: (2, 4)}
RUN = {
    "max_steps": 20,
    "global_batch_size": 16,
    "learning_rate": 1e-3,
    "eval_steps": 10,
    "save_steps": 20,
}
ADAPTER = Adapter(rank=4, alpha=8)


@pytest.fixture(scope="module")
def make_job(preferences: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Make]:
    """Makes `job_maker`s by the settings of the loss."""

    def make(loss: str = "dpo") -> Make:
        folder = tmp_path_factory.mktemp("jobs")
        keys = result_keys(SETTINGS[loss])
        return job_maker(preferences, folder, "reference", preference=keys)

    return make


@pytest.mark.parametrize(
    "loss",
    ["dpo", *(pytest.param(loss, marks=pytest.mark.long) for loss in SETTINGS if loss != "dpo")],
)
def test_losses_are_those_of_plain_transformers_with_both_models(
    loss: str, make_job: Callable[..., Make], alone: Worker
) -> None:
    job = make_job(loss)(**RUN)
    train(job, alone)
    expected = preference_losses_one_by_one(job)
    assert len(expected) == 20
    assert losses(job) == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < 0.99 * expected[0]


@pytest.fixture(scope="module")
def alone_losses(make_job: Callable[..., Make], alone: Worker) -> dict[str, list[float]]:
    """What a single process without a process group gives."""
    make = make_job()
    whole, adapted = make("alone", **RUN), make("alone lora", adapter=ADAPTER, **RUN)
    for job in (whole, adapted):
        train(job, alone)
    return {"whole": losses(whole), "lora": losses(adapted), "held out": losses(whole, "eval_loss")}


@pytest.mark.parametrize(
    ("launcher", "layouts"),
    [
        pytest.param("torchrun", ("2 x 4 x 2", LORA), marks=pytest.mark.long),
        pytest.param("torchrun", ("1 x 16",), marks=pytest.mark.release),
        pytest.param("torchrun", ("2 x 8",), marks=pytest.mark.release),
        pytest.param("torchrun", ("4 x 4",), marks=pytest.mark.release),
        pytest.param("ray", ("2 x 8", LORA), marks=pytest.mark.release),
    ],
)
def test_losses_are_those_of_a_single_process_at_each_step(
    launcher: str,
    layouts: tuple[str, ...],
    make_job: Callable[..., Make],
    alone_losses: dict[str, list[float]],
    tmp_path: Path,
) -> None:
    make, jobs = make_job(), Jobs()
    for engine, settings in ENGINES.items():
        for layout in layouts:
            keys = RUN | settings | {"micro_batch_size": LAYOUTS[layout][1]}
            adapter = ADAPTER if layout == LORA else None
            jobs[engine, layout] = make(f"{engine} {layout}", adapter=adapter, **keys)
    (workers,) = {LAYOUTS[layout][0] for layout in layouts}
    train_all(list(jobs.values()), workers, launcher, tmp_path / "workers")
    for (engine, layout), job in jobs.items():
        expected = alone_losses["lora" if layout == LORA else "whole"]
        assert losses(job) == pytest.approx(expected, rel=1e-5), f"{engine} {layout}"
        if layout != LORA:
            held_out = alone_losses["held out"]
            assert losses(job, "eval_loss") == pytest.approx(held_out, rel=1e-5), engine


@pytest.mark.long
def test_gradient_checkpointing_changes_nothing_but_rounding(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    make = make_job()
    kept, again = make("kept"), make("again", gradient_checkpointing=True)
    for job in (kept, again):
        train(job, alone)
    assert losses(again) == pytest.approx(losses(kept), rel=1e-6)


class CrashError(Exception):
    """The end of a worker, in the middle of a run."""


def test_a_resumed_run_ends_with_the_same_bits(
    make_job: Callable[..., Make], alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: Saver) -> None:
        finish(self)
        if path_of(folder_of(resumed.work), 4).exists():
            raise CrashError

    finish, make = Saver.finish, make_job()
    undisturbed, resumed = make("undisturbed"), make("resumed")
    train(undisturbed, alone)
    monkeypatch.setattr(Saver, "finish", crash)
    with pytest.raises(CrashError):
        train(resumed, alone)
    monkeypatch.setattr(Saver, "finish", finish)
    assert train(resumed, alone)["resumed_from"] == 4
    assert losses(resumed) == losses(undisturbed)
    expected = weights(undisturbed)
    for name, value in weights(resumed).items():
        assert torch.equal(value, expected[name])


def weights(job: Job) -> dict[str, torch.Tensor]:
    storage = FolderStorage(job.work)
    step = checkpoints.newest(storage, lambda step, names: None)
    assert step
    return tensors_of(storage.fetch(step))
