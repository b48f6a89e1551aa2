"""Adapters on mixtures of experts in 4 bits: one process and two, resumed, exported."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import PACKED, build
from checkpoints import are_equal, last_tensors
from engines import ENGINES
from fleet import losses, train_all
from jobs import Make, job_maker
from peft import PeftModel

from moray.config.schema.train import Adapter
from moray.model.adapter import merged, save_adapter
from moray.model.load import load_model
from moray.storage.interface import folder_of, path_of
from moray.tasks.language.proofs.plain import load
from moray.train.checkpoint.load import trained_model
from moray.train.history import HISTORY, read_history
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

MIXTURES = ("Qwen3-MoE", "Mixtral")
ADAPTER = Adapter(rank=4, dropout=0.0, quantize_base="4bit")
ON_TWO: dict[str, dict[str, Any]] = {
    "ddp": ENGINES["ddp"],
    "fsdp2": ENGINES["fsdp2"],
    "fsdp2 checkpointed": ENGINES["fsdp2"] | {"gradient_checkpointing": True},
    "fsdp2 accumulated": ENGINES["fsdp2"] | {"micro_batch_size": 2},
}


@pytest.fixture(scope="module")
def make(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes jobs on a mixture."""
    folder = tmp_path_factory.mktemp("jobs")
    for mixture in MIXTURES:
        shutil.copytree(small / "model", folder / mixture)
        config = PACKED[mixture]()
        config.vocab_size = load(small / "model").config.vocab_size
        build(config).save_pretrained(folder / mixture)
    job = job_maker(small, folder)

    def make(work: str, mixture: str, adapter: Adapter = ADAPTER, **keys: Any) -> RunSpec:
        made = job(work, adapter, **{"save_total_limit": 10, "learning_rate": 1e-3, **keys})
        return replace(made, start=folder / mixture)

    return make


@pytest.fixture(scope="module")
def trained(
    make: Make, alone: Worker, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], RunSpec]:
    jobs = {
        (mixture, name): make(f"{mixture} {name}", mixture, **keys)
        for mixture in MIXTURES
        for name, keys in ON_TWO.items()
    }
    train_all([*jobs.values()], 2, "torchrun", tmp_path_factory.mktemp("workers"))
    for mixture in MIXTURES:
        jobs[mixture, "alone"] = make(f"{mixture} alone", mixture)
        train(jobs[mixture, "alone"], alone)
    return jobs


@pytest.mark.release
@pytest.mark.parametrize("mixture", MIXTURES)
def test_two_workers_have_the_losses_of_one(
    mixture: str, trained: dict[tuple[str, str], RunSpec]
) -> None:
    whole = trained[mixture, "alone"]
    for name in ON_TWO:
        for kind in ("loss", "eval_loss"):
            found = losses(trained[mixture, name], kind)
            # Layers of 4 bits compute in bf16.
            assert found == pytest.approx(losses(whole, kind), rel=2e-3), name
    for kind in ("loss", "eval_loss"):
        by_ddp, by_fsdp2 = (losses(trained[mixture, name], kind) for name in ("ddp", "fsdp2"))
        # A last bit in bf16 sends a token to another expert sooner or later.
        assert by_fsdp2 == pytest.approx(by_ddp, rel=2e-3)
    first = [losses(trained[mixture, name])[0] for name in ("ddp", "fsdp2")]
    assert first[1] == pytest.approx(first[0], rel=1e-6)
    # Beside plain transformers, with experts that bitsandbytes has rounded by itself.
    proof = next(line["proof"] for line in read_history(whole.work / HISTORY) if "proof" in line)
    assert proof[0]["here"] == pytest.approx(proof[0]["plain"], rel=5e-3)


@pytest.mark.release
def test_a_resumed_run_ends_with_the_same_bits(
    make: Make, trained: dict[tuple[str, str], RunSpec], tmp_path: Path
) -> None:
    whole = trained["Mixtral", "fsdp2"]
    resumed = make("resumed", "Mixtral", **ON_TWO["fsdp2"])
    shutil.copytree(folder_of(whole.work), folder_of(resumed.work))
    for step in (6, 8):
        shutil.rmtree(path_of(folder_of(resumed.work), step))
    train_all([resumed], 2, "torchrun", tmp_path)
    assert losses(resumed) == losses(whole)[-4:]
    assert are_equal(last_tensors(resumed), last_tensors(whole))


@pytest.mark.release
@pytest.mark.parametrize("mixture", MIXTURES)
@torch.no_grad()
def test_peft_loads_the_export_and_the_merged_model_says_the_same(
    mixture: str, trained: dict[tuple[str, str], RunSpec], tmp_path: Path
) -> None:
    job = trained[mixture, "fsdp2"]
    assert job.adapter
    last = path_of(folder_of(job.work), 8)
    model = trained_model(job.start, last, job.adapter)
    save_adapter(model, job.adapter, tmp_path, torch.float32)
    tokens = torch.arange(48).view(2, 24)
    expected = model.eval()(tokens, use_cache=False).logits
    base = load(job.start)
    assert (base(tokens, use_cache=False).logits - expected).abs().max() > 1e-3
    alone: Any = PeftModel.from_pretrained(base, tmp_path)
    assert torch.equal(alone.eval()(tokens, use_cache=False).logits, expected)
    whole = merged(load_model(job.start), tmp_path)(tokens, use_cache=False).logits
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
