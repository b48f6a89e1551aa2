"""Adapters on a quantized base, on two workers: sharded by FSDP2, as whole on each with DDP."""

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import are_equal, last_tensors
from engines import ENGINES, train_without_weights
from fleet import losses, train_all
from jobs import Make, job_maker
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, Qwen2Config

from moray.config.schema.train import Adapter
from moray.model.adapter import merged, save_adapter
from moray.model.load import load_model
from moray.model.quantization import Bits
from moray.storage.interface import folder_of, path_of
from moray.train.checkpoint.load import trained_model
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

FSDP2: dict[str, dict[str, Any]] = {
    "fsdp2": ENGINES["fsdp2"],
    "gathered": {"strategy": "fsdp2", "fsdp2": {"reshard_after_forward": False}},
    "two copies": {"strategy": "fsdp2", "fsdp2": {"shard_size": 1}},
    "offloaded": {"strategy": "fsdp2", "fsdp2": {"cpu_offload": True}},
    "checkpointed": {"strategy": "fsdp2", "gradient_checkpointing": True},
    "accumulated": {"strategy": "fsdp2", "micro_batch_size": 2},
}
HELD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fp32": ({}, {}),
    "bf16": ({"base_dtype": "bf16"}, {"precision": "bf16"}),
}
# Their linear layers have biases; those of GPT-2 keep the transpose of their weights. Its dropout
# would be another on another number of workers.
SIZES = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128}
WITH_BIASES: dict[str, Callable[[int], Any]] = {
    "gpt2": lambda vocabulary: GPT2Config(
        vocab_size=vocabulary,
        n_positions=128,
        n_embd=36,
        n_layer=2,
        n_head=2,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    ),
    "qwen2": lambda vocabulary: Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=2,
        **SIZES,
    ),
}


# What is trained with weights of so many bits: on which models, and with which variants of FSDP2.
BITS: dict[Bits, tuple[list[str], list[str]]] = {
    "4bit": (["llama", *WITH_BIASES], [*FSDP2]),
    "8bit": (["llama", "gpt2"], ["checkpointed"]),
}


@pytest.fixture(scope="module")
def starts(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models, by their architecture."""
    starts = {"llama": small / "model"}
    vocabulary = AutoConfig.from_pretrained(small / "model").vocab_size
    for name, config in WITH_BIASES.items():
        starts[name] = tmp_path_factory.mktemp("starts") / name
        shutil.copytree(small / "model", starts[name])
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config(vocabulary))
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(starts[name])
    return starts


@pytest.fixture(scope="module")
def make(starts: dict[str, Path], small: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """See `job_maker`; with an adapter on a quantized base."""
    job = job_maker(small, tmp_path_factory.mktemp("jobs"))

    def make(
        name: str, bits: Bits = "4bit", start: str = "llama", held: str = "fp32", **keys: Any
    ) -> RunSpec:
        adapter, train = HELD[held]
        settings = {"save_total_limit": 10, **train, **keys}
        made = job(name, Adapter(rank=4, quantize_base=bits, **adapter), **settings)
        return replace(made, start=starts[start])

    return make


@pytest.fixture(scope="module")
def trained(make: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    """What is trained on one start of the workers."""
    jobs = {}
    for bits, (starts, variants) in BITS.items():
        for variant in variants:
            name = f"{bits} {variant}"
            jobs[name] = make(name, bits, **FSDP2[variant])
        for start, held, engine in itertools.product(starts, HELD, ("ddp", "fsdp2")):
            if held != "fp32" and (bits, start) != ("4bit", "llama"):
                continue
            name = f"{bits} {start} {held} {engine}"
            jobs[name] = make(name, bits, start, held, **ENGINES[engine])
    train_all([*jobs.values()], 2, "torchrun", tmp_path_factory.mktemp("workers"))
    return jobs


@pytest.mark.long
def test_fsdp2_has_the_losses_of_ddp(trained: dict[str, RunSpec]) -> None:
    for name in trained:
        bits, which = name.split(maxsplit=1)
        other = f"{bits} llama fp32 ddp" if which in FSDP2 else name.replace("fsdp2", "ddp")
        for kind in ("loss", "eval_loss"):
            found = losses(trained[name], kind)
            assert found == pytest.approx(losses(trained[other], kind), rel=1e-5), name
        assert last_tensors(trained[name]).keys() == last_tensors(trained[other]).keys()


@pytest.mark.long
@pytest.mark.parametrize("start", BITS["8bit"][0])
def test_two_workers_have_the_losses_of_a_single_process(
    start: str, trained: dict[str, RunSpec], make: Make, alone: Worker
) -> None:
    job = make(f"{start} alone", "8bit", start)
    train(job, alone)
    for kind in ("loss", "eval_loss"):
        for engine in ("ddp", "fsdp2"):
            found = losses(trained[f"8bit {start} fp32 {engine}"], kind)
            assert found == pytest.approx(losses(job, kind), rel=1e-5), engine


@pytest.mark.long
def test_a_resumed_run_ends_with_the_same_bits(
    trained: dict[str, RunSpec], make: Make, tmp_path: Path
) -> None:
    resumed_jobs = {bits: make(f"{bits} resumed", bits, **ENGINES["fsdp2"]) for bits in BITS}
    for bits, resumed in resumed_jobs.items():
        whole = trained[f"{bits} llama fp32 fsdp2"]
        shutil.copytree(folder_of(whole.work), folder_of(resumed.work))
        for step in (6, 8):
            shutil.rmtree(path_of(folder_of(resumed.work), step))
    train_all([*resumed_jobs.values()], 2, "torchrun", tmp_path)
    for bits, resumed in resumed_jobs.items():
        whole = trained[f"{bits} llama fp32 fsdp2"]
        assert losses(resumed) == losses(whole)[-len(losses(resumed)) :]
        assert len(losses(resumed)) == 4
        assert are_equal(last_tensors(resumed), last_tensors(whole))


@pytest.mark.long
@pytest.mark.parametrize(
    ("bits", "start"), [(bits, start) for bits, (starts, _) in BITS.items() for start in starts]
)
def test_what_was_trained_is_added_to_the_original_base(
    bits: Bits, start: str, trained: dict[str, RunSpec], tmp_path: Path
) -> None:
    job = trained[f"{bits} {start} fp32 fsdp2"]
    assert job.adapter
    last = path_of(folder_of(job.work), 8)
    save_adapter(trained_model(job.start, last, job.adapter), job.adapter, tmp_path, torch.float32)
    base, tensors = load_model(job.start), last_tensors(job)
    before = {name: weight.clone() for name, weight in base.named_parameters()}
    count = 0
    for name, weight in merged(base, tmp_path).named_parameters():
        layer = name.removesuffix(".weight")
        first, second = (tensors.get(f"{layer}.lora_{key}.default.weight") for key in "AB")
        if first is None or second is None:
            assert torch.equal(weight, before[name])
            continue
        count += 1
        update = job.adapter.alpha / job.adapter.rank * second @ first
        update = update.T if start == "gpt2" else update
        assert update.abs().max() > 1e-3
        torch.testing.assert_close(weight, before[name] + update)
    assert count == {"llama": 14, "gpt2": 8, "qwen2": 14}[start]


@pytest.mark.long
def test_each_worker_holds_its_share_and_one_reads_the_weights(make: Make, tmp_path: Path) -> None:
    jobs = {bits: make(f"{bits} measured", bits, max_steps=1, **ENGINES["fsdp2"]) for bits in BITS}
    train_all([*jobs.values()], 2, "torchrun", tmp_path / "workers", train_without_weights)
    for bits, job in jobs.items():
        # The weights of linear layers, by so many in a byte, by two workers.
        found = [json.loads((job.work / f"held-{rank}").read_text()) for rank in (0, 1)]
        assert found == [[20_480 // {"4bit": 2, "8bit": 1}[bits] // 2, 14]] * 2
        assert len(losses(job)) == 1
