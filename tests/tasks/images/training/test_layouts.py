"""One run of images, whoever computes it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fleet import losses, train_all
from jobs import Make
from transformers import AutoModelForImageClassification

from moray.config.schema.sections import Data, Ray
from moray.rows.store import StoredRows
from moray.storage.folder import FolderStorage
from moray.storage.interface import folder_of, path_of
from moray.train.checkpoint import keep
from moray.train.checkpoint.load import read_state
from moray.train.driver import run_training
from moray.train.history import read_history
from moray.train.loop import train
from moray.train.schedule import learning_rate
from moray.train.spec import Part, RunSpec
from moray.train.statistics import statistics_of
from moray.train.step import mixture_of
from moray.workers.entry import Worker

RUN: dict[str, Any] = {
    "max_steps": 10,
    "global_batch_size": 16,
    "learning_rate": 3e-3,
    "eval_steps": 5,
    "save_steps": 10,
}
# Strategies know no task: train/test_equality.py has all of them. ZeRO has statistics of its own.
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp2": {"strategy": "fsdp2"},
}
ZERO: dict[str, Any] = {"strategy": "deepspeed", "deepspeed": {"zero_stage": 2}}
# Workers, and rows of a micro-batch.
LAYOUTS = {"2 x 4 x 2": (2, 4), "4 x 4": (4, 4)}


@pytest.fixture(scope="module")
def alone_job(make_vit_job: Make, alone: Worker) -> RunSpec:
    """What a single process without a process group trains: the reference."""
    job = make_vit_job("alone", micro_batch_size=16, **RUN)
    train(job, alone)
    return job


def test_losses_are_those_of_plain_pytorch(alone_job: RunSpec) -> None:
    assert losses(alone_job) == pytest.approx(plain_losses(alone_job), rel=1e-5)
    found = losses(alone_job)
    assert found[-1] < 0.98 * found[0]


def plain_losses(job: RunSpec) -> list[float]:
    """The loss of each step, by transformers and AdamW alone."""
    settings, split = job.settings, StoredRows(job.store, "train")
    model = AutoModelForImageClassification.from_pretrained(job.start).train()
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    mixture, found = mixture_of(job.parts, settings), []
    assert settings.max_steps is not None
    for step in range(settings.max_steps):
        rows = split.rows[mixture.rows(step)[1]]
        # The processor's mean and standard deviation are a half.
        pixels = torch.from_numpy(rows["pixels"].astype(np.float32) / 255 * 2 - 1)
        loss = F.cross_entropy(model(pixels).logits, torch.from_numpy(rows["label"].astype("i8")))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, settings.max_steps)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.long
@pytest.mark.parametrize("layout", ["2 x 4 x 2", pytest.param("4 x 4", marks=pytest.mark.release)])
def test_a_vit_has_the_losses_of_a_single_process_at_each_step(
    layout: str, alone_job: RunSpec, make_vit_job: Make, tmp_path: Path
) -> None:
    workers, size = LAYOUTS[layout]
    jobs = {
        engine: make_vit_job(f"{engine} {layout}", micro_batch_size=size, **RUN, **settings)
        for engine, settings in ENGINES.items()
    }
    train_all([*jobs.values()], workers, "torchrun", tmp_path / "workers")
    for engine, job in jobs.items():
        assert losses(job) == pytest.approx(losses(alone_job), rel=1e-5), engine
        held_out = losses(alone_job, "eval_loss")
        assert losses(job, "eval_loss") == pytest.approx(held_out, rel=1e-5), engine


def last_state(job: RunSpec) -> dict[str, torch.Tensor]:
    """Weights and statistics in a job's last checkpoint."""
    model = AutoModelForImageClassification.from_pretrained(job.start)
    state = {name: value.detach() for name, value in model.named_parameters()}
    state |= statistics_of(model)
    steps = job.settings.max_steps
    assert steps is not None
    read_state(path_of(folder_of(job.work), steps), state, alone=True)
    return state


@pytest.fixture(scope="module")
def resnets(make_resnet_job: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    """A ResNet after some steps on two workers, by engine."""
    jobs = {
        engine: make_resnet_job(engine, micro_batch_size=8, **RUN, **settings)
        for engine, settings in {**ENGINES, "zero-2": ZERO}.items()
    }
    jobs["one step"] = make_resnet_job("one", micro_batch_size=8, **RUN | {"max_steps": 1})
    train_all([*jobs.values()], 2, "torchrun", tmp_path_factory.mktemp("workers"))
    return jobs


@pytest.mark.long
def test_a_resnet_has_the_same_losses_and_statistics_under_all_strategies(
    resnets: dict[str, RunSpec],
) -> None:
    expected = last_state(resnets["ddp"])
    for engine in (*ENGINES, "zero-2"):
        assert losses(resnets[engine]) == pytest.approx(losses(resnets["ddp"]), rel=1e-4), engine
        evaluated = losses(resnets["ddp"], "eval_loss")
        assert losses(resnets[engine], "eval_loss") == pytest.approx(evaluated, rel=1e-4), engine
        state = last_state(resnets[engine])
        for name in expected:
            if "running" in name:
                torch.testing.assert_close(state[name], expected[name], rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_statistics_are_the_mean_of_those_of_the_workers(resnets: dict[str, RunSpec]) -> None:
    job = resnets["one step"]
    split = StoredRows(job.store, "train")
    rows = split.rows[mixture_of(job.parts, job.settings).rows(0)[1]]
    states = []
    for mine in np.split(rows, 2):
        model = AutoModelForImageClassification.from_pretrained(job.start).train()
        model(torch.from_numpy(mine["pixels"].astype(np.float32) / 255 * 2 - 1))
        states.append(statistics_of(model))
    found = last_state(job)
    assert states[0]
    for name in states[0]:
        if "running" in name:
            mean = (states[0][name] + states[1][name]) / 2
            torch.testing.assert_close(found[name], mean, rtol=1e-5, atol=1e-6)
            assert not torch.equal(states[0][name], states[1][name])
        else:
            assert found[name] == 1


@pytest.mark.release
def test_a_resumed_run_has_the_same_bits_statistics_included(
    make_resnet_job: Make, tmp_path: Path
) -> None:
    jobs = {}
    for engine, settings in {**ENGINES, "zero-2": ZERO}.items():
        keys = RUN | settings | {"micro_batch_size": 8, "save_steps": 10}
        jobs[engine] = make_resnet_job(f"resumed {engine}", **keys)
    train_all([*jobs.values()], 2, "torchrun", tmp_path / "first")
    before = {engine: last_state(job) for engine, job in jobs.items()}
    for job in jobs.values():
        keep.remove_from(FolderStorage(job.work), 20)
    train_all([*jobs.values()], 2, "torchrun", tmp_path / "second")
    for engine, job in jobs.items():
        after = last_state(job)
        for name, value in before[engine].items():
            assert torch.equal(after[name], value), f"{engine} {name}"


@pytest.mark.release
def test_augmented_images_are_the_same_on_any_number_of_workers(
    make_vit_job: Make, alone: Worker, tmp_path: Path
) -> None:
    settings = {"augmentation": {"shift": 2, "flip": True}}
    one, two, plain = (make_vit_job(name, micro_batch_size=8, **RUN) for name in "ABC")
    one, two = (replace(job, task_settings=settings) for job in (one, two))
    for job in (one, plain):
        train(job, alone)
    train_all([two], 2, "torchrun", tmp_path / "workers")
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert losses(one) != pytest.approx(losses(plain), rel=1e-4)


@pytest.mark.release
def test_augmented_images_are_the_same_when_they_are_streamed(
    make_vit_job: Make, vit: Path, alone: Worker, tmp_path: Path
) -> None:
    settings = {"augmentation": {"shift": 2, "flip": True}}
    job = replace(make_vit_job("in memory", micro_batch_size=8, **RUN), task_settings=settings)
    train(job, alone)
    (tmp_path / "out").mkdir()
    spec = RunSpec(
        "name",
        vit / "model",
        (Part("digits", vit / "pixels"),),
        job.settings,
        task_settings=settings,
        data=Data(loader="stream"),
        ray=Ray(
            storage_path=str(tmp_path / "state"), num_workers=2, resources_per_worker={"CPU": 0.5}
        ),
    )
    run_training(spec, tmp_path / "out")
    lines = read_history(tmp_path / "out/history.jsonl")
    streamed = [line["loss"] for line in lines if "loss" in line]
    assert streamed == pytest.approx(losses(job), rel=1e-5)
