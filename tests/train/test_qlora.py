"""Adapters on a base in 4 bits, on two workers: sharded by FSDP2, as whole on each with DDP."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import are_equal, last_tensors
from engines import ENGINES, train_without_weights
from fleet import losses, train_all
from jobs import Make, job_maker
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

from moray.config.schema.train import Adapter
from moray.storage.interface import folder_of, path_of
from moray.train.job import Job

FSDP2: dict[str, dict[str, Any]] = {
    "fsdp2": ENGINES["fsdp2"],
    "two copies": {"strategy": "fsdp2", "fsdp2": {"shard_size": 1}},
    "offloaded": {"strategy": "fsdp2", "fsdp2": {"cpu_offload": True}},
    "checkpointed": {"strategy": "fsdp2", "gradient_checkpointing": True},
    "accumulated": {"strategy": "fsdp2", "micro_batch_size": 2},
}
HELD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fp32": ({}, {}),
    "bf16": ({"base_dtype": "bf16"}, {"precision": "bf16"}),
}


@pytest.fixture(scope="module")
def with_biases(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2, whose linear layers have biases, and whose output embedding is its own."""
    folder = Path(shutil.copytree(small / "model", tmp_path_factory.mktemp("biases") / "model"))
    vocabulary = AutoConfig.from_pretrained(folder).vocab_size
    sizes = {"hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        Qwen2Config(vocab_size=vocabulary, tie_word_embeddings=False, **sizes, **heads)
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def make(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """See `job_maker`; with an adapter on 4 bits."""
    job = job_maker(small, tmp_path_factory.mktemp("jobs"))

    def make(name: str, held: str, **keys: Any) -> Job:
        adapter, train = HELD[held]
        settings = {"save_total_limit": 10, **train, **keys}
        return job(name, Adapter(rank=4, quantize_base="4bit", **adapter), **settings)

    return make


@pytest.mark.long
def test_fsdp2_has_the_losses_of_ddp_and_resumes_to_the_same_bits(
    make: Make, with_biases: Path, tmp_path: Path
) -> None:
    engines = {"ddp": ENGINES["ddp"], **FSDP2}
    jobs = {name: make(name, "fp32", **keys) for name, keys in engines.items()}
    for held in HELD:
        for name in ("ddp", "fsdp2"):
            job = make(f"biases {name} {held}", held, **ENGINES[name])
            jobs[f"biases {name} {held}"] = replace(job, start=with_biases)
    jobs["ddp bf16"] = make("ddp bf16", "bf16", **ENGINES["ddp"])
    jobs["fsdp2 bf16"] = make("fsdp2 bf16", "bf16", **ENGINES["fsdp2"])
    train_all([*jobs.values()], 2, "torchrun", tmp_path / "workers")
    for name in FSDP2:
        assert losses(jobs[name]) == pytest.approx(losses(jobs["ddp"]), rel=1e-5), name
    for kind in ("biases {} fp32", "biases {} bf16", "{} bf16"):
        found, expected = (losses(jobs[kind.format(name)]) for name in ("fsdp2", "ddp"))
        assert found == pytest.approx(expected, rel=1e-5), kind
    # Only adapters are in checkpoints, by the same names.
    whole = jobs["fsdp2"]
    assert last_tensors(whole).keys() == last_tensors(jobs["ddp"]).keys()
    resumed = make("resumed", "fp32", **ENGINES["fsdp2"])
    shutil.copytree(folder_of(whole.work), folder_of(resumed.work))
    for step in (6, 8):
        shutil.rmtree(path_of(folder_of(resumed.work), step))
    train_all([resumed], 2, "torchrun", tmp_path / "again")
    assert losses(resumed) == losses(whole)[-len(losses(resumed)) :]
    assert len(losses(resumed)) == 4
    assert are_equal(last_tensors(resumed), last_tensors(whole))


@pytest.mark.long
def test_each_worker_holds_its_share_and_one_reads_the_weights(make: Make, tmp_path: Path) -> None:
    job = make("measured", "fp32", max_steps=1, **ENGINES["fsdp2"])
    train_all([job], 2, "torchrun", tmp_path / "workers", train_without_weights)
    # The weights of linear layers, by two in a byte, by two workers.
    found = [json.loads((job.work / f"held-{rank}").read_text()) for rank in (0, 1)]
    assert found == [[20_480 // 2 // 2, 14]] * 2
    assert len(losses(job)) == 1
