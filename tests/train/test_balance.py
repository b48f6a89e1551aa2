"""Runs with the load-balancing loss of a mixture, by layouts, against plain transformers."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from architectures import PACKED, build
from checkpoints import check_same_bits
from engines import ENGINES
from fleet import losses, train_all
from jobs import Make, job_maker, without_later
from plain import balanced_losses
from transformers import AutoConfig

from moray.config.schema.train import Adapter
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

# As a whole, in micro-batches, and with blocks that are computed again.
LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "accumulated": {"micro_batch_size": 3},
    "checkpointed": {"micro_batch_size": 2, "gradient_checkpointing": True},
}


@pytest.fixture(scope="module")
def make(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes jobs on a mixture with a large coefficient."""
    folder = tmp_path_factory.mktemp("jobs")
    shutil.copytree(small / "model", folder / "mixture")
    config = PACKED["Mixtral"]()
    config.vocab_size = AutoConfig.from_pretrained(small / "model").vocab_size
    config.router_aux_loss_coef = 0.3
    build(config).save_pretrained(folder / "mixture")
    job = job_maker(small, folder)

    def make(work: str, adapter: Adapter | None = None, **keys: Any) -> RunSpec:
        settings = {"learning_rate": 1e-3, "router_aux_loss": True, "save_total_limit": 10}
        return replace(job(work, adapter, **settings | keys), start=folder / "mixture")

    return make


@pytest.fixture(scope="module")
def expected(make: Make) -> list[float]:
    return balanced_losses(make("plain"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_loss_is_that_of_plain_transformers(
    layout: str, make: Make, expected: list[float], alone: Worker
) -> None:
    job = make(f"alone {layout}", **LAYOUTS[layout])
    train(job, alone)
    assert losses(job) == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
def test_workers_and_strategies_have_the_same_losses_and_resume(
    make: Make, expected: list[float], alone: Worker, tmp_path: Path
) -> None:
    jobs = {
        f"{engine} {layout}": make(f"{engine} {layout}", **ENGINES[engine], **keys)
        for engine in ("ddp", "fsdp2", "zero-2")
        for layout, keys in LAYOUTS.items()
    }
    adapter = Adapter(rank=2)
    adapted = {name: make(f"lora {name}", adapter, **ENGINES[name]) for name in ("ddp", "fsdp2")}
    train_all([*jobs.values(), *adapted.values()], 2, "torchrun", tmp_path / "first")
    for name, job in jobs.items():
        assert losses(job) == pytest.approx(expected, rel=1e-5), name
    one = make("lora alone", adapter, micro_batch_size=2)
    train(one, alone)
    for name, job in adapted.items():
        assert losses(job) == pytest.approx(losses(one), rel=1e-5), name
    whole = jobs["fsdp2 accumulated"]
    keys = ENGINES["fsdp2"] | LAYOUTS["accumulated"]
    resumed = without_later(make, whole, "resumed", 4, **keys)
    train_all([resumed], 2, "torchrun", tmp_path / "second")
    check_same_bits(resumed, whole)
