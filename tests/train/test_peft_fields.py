"""Runs with adapters of many kinds: one process, two workers, resumed."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapted import write_adapter
from checkpoints import check_same_bits
from engines import ENGINES
from fleet import losses, train_all
from jobs import job_maker, without_later
from plain import losses_one_by_one
from transformers import AutoConfig, AutoModelForCausalLM

from moray.config.schema.train import Adapter
from moray.model.shapes import NEW_TOKENS
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

ATTENTION = ["q_proj", "v_proj"]
FIELDS: dict[str, dict[str, Any]] = {
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora", "rank_pattern": {"q_proj": 2}},
    "orthogonal": {"init_lora_weights": "orthogonal", "layers_to_transform": [1]},
    "modules": {"modules_to_save": ["embed_tokens", "lm_head"], "alpha_pattern": {"q_proj": 3.0}},
    "expression": {"target_modules": r".*layers\.1\..*_proj", "init_lora_weights": "gaussian"},
}


@pytest.mark.release
def test_two_workers_have_the_losses_of_one_and_a_resumed_run_the_same_bits(
    small: Path, alone: Worker, tmp_path: Path
) -> None:
    # Two embeddings, so that both can be trained.
    untied = tmp_path / "untied"
    shutil.copytree(small, untied)
    config = AutoConfig.from_pretrained(small / "model")
    config.tie_word_embeddings = False
    AutoModelForCausalLM.from_config(config).save_pretrained(untied / "model")
    # With embeddings that are trained whole, also those of new tokens are.
    marked = Path(shutil.copytree(untied / "model", tmp_path / "marked"))
    read = json.loads((marked / "config.json").read_text())
    (marked / "config.json").write_text(json.dumps(read | {NEW_TOKENS: [5, 7]}))
    plain = job_maker(untied, tmp_path)

    def make(name: str, adapter: Adapter, **keys: Any) -> RunSpec:
        made = plain(name, adapter, **keys)
        return replace(made, start=marked) if adapter.modules_to_save else made

    adapters = {
        name: Adapter(**{"rank": 4, "target_modules": ATTENTION, **keys})
        for name, keys in FIELDS.items()
    }
    keys = {"save_total_limit": 10, "loraplus_lr_ratio": 4.0, "learning_rate": 1e-3}
    jobs = {
        (name, engine): make(f"{name} {engine}", adapters[name], **ENGINES[engine], **keys)
        for name, engine in itertools.product(FIELDS, ("ddp", "fsdp2"))
    }
    for engine in ("zero-2", "zero-3"):
        jobs["pissa", engine] = make(
            f"pissa {engine}", adapters["pissa"], **ENGINES[engine], **keys
        )
    train_all([*jobs.values()], 2, "torchrun", tmp_path / "first")
    for name, adapter in adapters.items():
        one = make(f"{name} alone", adapter, **keys)
        train(one, alone)
        for engine in [engine for which, engine in jobs if which == name]:
            found = losses(jobs[name, engine])
            assert found == pytest.approx(losses(one), rel=1e-5), f"{name} {engine}"
    resumed = {
        name: without_later(
            make, jobs[name, "fsdp2"], f"{name} resumed", 4, **ENGINES["fsdp2"], **keys
        )
        for name in FIELDS
    }
    train_all([*resumed.values()], 2, "torchrun", tmp_path / "second")
    for name, job in resumed.items():
        check_same_bits(job, jobs[name, "fsdp2"])


@pytest.mark.long
def test_a_run_that_goes_on_with_an_adapter_has_the_losses_of_peft_on_any_workers(
    small: Path, alone: Worker, tmp_path: Path
) -> None:
    adapter = Adapter(rank=4, dropout=0.0)
    start = write_adapter(small / "model", tmp_path / "model", adapter)
    make = job_maker(small, tmp_path)
    adapter = adapter.model_copy(update={"create_new_adapter": False})

    def make_on_adapter(name: str, adapter: Adapter, **keys: Any) -> RunSpec:
        return replace(make(name, adapter, **keys), start=start)

    keys = {"save_total_limit": 10, "learning_rate": 1e-3}
    jobs = {
        engine: make_on_adapter(engine, adapter, **ENGINES[engine], **keys)
        for engine in ("ddp", "fsdp2", "zero-3")
    }
    train_all([*jobs.values()], 2, "torchrun", tmp_path / "first")
    one = make_on_adapter("alone", adapter, **keys)
    train(one, alone)
    assert losses(one) == pytest.approx(losses_one_by_one(one), rel=1e-5)
    for engine, job in jobs.items():
        assert losses(job) == pytest.approx(losses(one), rel=1e-5), engine
    resumed = without_later(
        make_on_adapter, jobs["fsdp2"], "resumed", 4, **ENGINES["fsdp2"], **keys
    )
    train_all([resumed], 2, "torchrun", tmp_path / "second")
    check_same_bits(resumed, jobs["fsdp2"])
