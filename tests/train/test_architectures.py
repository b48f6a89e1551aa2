"""Architectures of transformers, from a folder to steps of the real loop.

Each loss is held against plain transformers on every document alone, so that a document that saw
its neighbours, or padding, would show.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import HYBRID, PACKED, UNPACKED, build
from engines import ENGINES, LORA, ON_TWO, jobs_of, losses_alone, workers_of
from engines import check_losses as check_layouts
from fleet import losses, train_all
from plain import losses_one_by_one
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.evaluate.worker import batches_of
from moray.model.load import load_model
from moray.provenance.manifest import read_manifest
from moray.stages.base_model import base_model
from moray.storage.interface import folder_of, path_of
from moray.tasks.language.likelihood import score, select_documents
from moray.tasks.language.proofs.plain import log_probabilities, pieces_of
from moray.tasks.language.rows import StoredSplit
from moray.tasks.language.tokenize import tokenize
from moray.tasks.language.tokenizer import load_tokenizer
from moray.train.checkpoint.load import trained_model
from moray.train.loop import train
from moray.train.spec import Part, RunSpec
from moray.workers.entry import Worker

ARCHITECTURES = PACKED | UNPACKED | HYBRID
# One whose documents are packed and one whose aren't.
SHORT = (next(iter(PACKED)), next(iter(UNPACKED)))
# Each is built much like one of the others, or used less; they are trained before a release.
RARE = {
    *("Apertus", "Bamba", "CodeGen", "Cohere", "Cohere 2", "DeepSeek-V2", "ERNIE 4.5"),
    *("ERNIE 4.5 MoE", "EXAONE 4", "Falcon-H1", "GLM-4", "GLM-4-MoE", "GPT-J", "GPT-Neo"),
    *("GPTBigCode", "Gemma", "Granite", "Granite 4", "Granite MoE", "HunYuan", "LFM2", "MPT"),
    *("Mamba", "MiniMax-M2", "Ministral", "Ministral 3", "Nemotron", "Nemotron-H", "OLMo"),
    *("OLMo 2", "OLMo 3", "OLMoE", "Phi", "Phi-3.5-MoE", "Qwen2-MoE", "Qwen3.5", "Seed-OSS"),
    *("StableLM", "StarCoder2"),
}


def prepare(architecture: str, small: Path, folder: Path, packing: bool | str = "auto") -> None:
    """Make `model`, a base of an architecture, and `tokens` for it, in a folder."""
    build(ARCHITECTURES[architecture]()).save_pretrained(folder / "given")
    load_tokenizer(small / "model").save_pretrained(folder / "given")
    base_model(folder / "model", {"source": "path", "path": str(folder / "given")})
    encode(small, folder, "tokens", packing)


def encode(small: Path, folder: Path, output: str, packing: bool | str) -> None:
    """Tokenize for the model in a folder."""
    data = Data(block_size=64, packing=packing)
    cfg = {"format": "prompt-completion", **result_keys(data)}
    tokenize(small / "dataset", folder / "model", folder / output, cfg)


def check_losses(job: RunSpec, folder: Path, alone: Worker) -> None:
    """Train on what was prepared, and hold the losses against those of plain transformers."""
    job = replace(job, start=folder / "model", parts=(Part("data", folder / "tokens"),))
    train(job, alone)
    assert losses(job) == pytest.approx(losses_one_by_one(job), rel=1e-4)


def check_scores(folder: Path) -> None:
    """Score held-out documents as `eval` does, and hold them against plain transformers."""
    split = StoredSplit(folder / "tokens", "test")
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    expected = []
    for piece in pieces_of(split.rows):
        with torch.no_grad():
            expected.append(-float(log_probabilities(model, *piece).sum()))
    selection = select_documents(split, None)
    scores = score(load_model(folder / "model"), split, selection, batches_of(selection.rows, 4))
    assert scores.nll.tolist() == pytest.approx(expected, rel=1e-5)


def check_refusal(small: Path, folder: Path) -> None:
    """Ask for packed rows where documents would see each other."""
    with pytest.raises(UserError) as caught:
        encode(small, folder, "packed", packing=True)
    kind = read_manifest(folder / "model")["architecture"]
    assert str(caught.value) == (
        f"data.packing: packed documents would attend to each other in {kind}; "
        "set it to auto or false"
    )
    assert not (folder / "packed").exists()


def marks(architecture: str) -> list[pytest.MarkDecorator]:
    if architecture in SHORT:
        return []
    return [pytest.mark.release if architecture in RARE else pytest.mark.long]


@pytest.mark.parametrize(
    "architecture", [pytest.param(name, marks=marks(name)) for name in ARCHITECTURES]
)
def test_it_trains_and_scores_as_each_document_alone(
    architecture: str, small: Path, make_job: Any, alone: Worker, tmp_path: Path
) -> None:
    prepare(architecture, small, tmp_path)
    packing = architecture in PACKED
    assert read_manifest(tmp_path / "tokens")["recipe"]["packing"] is packing
    split = StoredSplit(tmp_path / "tokens", "train")
    assert (len(split) < len(split.segments)) is packing
    check_losses(make_job(max_steps=3, learning_rate=1e-3), tmp_path, alone)
    check_scores(tmp_path)
    if not packing:
        check_refusal(small, tmp_path)


@pytest.mark.long
def test_one_that_also_takes_images_trains_on_text_and_keeps_the_rest(
    small: Path, make_job: Any, alone: Worker, tmp_path: Path
) -> None:
    prepare("Gemma 3 with images", small, tmp_path)

    def make(name: str, **settings: Any) -> RunSpec:
        parts = (Part("data", tmp_path / "tokens"),)
        job: RunSpec = make_job(name, **settings)
        return replace(job, start=tmp_path / "model", parts=parts)

    run = {"max_steps": 4, "global_batch_size": 16, "learning_rate": 1e-3, "eval_steps": 4}
    layouts = ("2 x 4 x 2", LORA)
    jobs = jobs_of(make, ("ddp", "fsdp2"), layouts, "torchrun", run)
    train_all([*jobs.values()], workers_of(layouts), "torchrun", tmp_path / "workers")
    check_layouts(jobs, losses_alone(make, alone, run))
    before = load_file(tmp_path / "model/model.safetensors")
    for strategy in ("ddp", "fsdp2"):
        checkpoint = path_of(folder_of(jobs[strategy, layouts[0]].work), 4)
        trained_model(tmp_path / "model", checkpoint, None).save_pretrained(tmp_path / strategy)
        after = load_file(tmp_path / strategy / "model.safetensors")
        assert after.keys() == before.keys()
        kept = {name for name in before if torch.equal(before[name], after[name])}
        assert kept == {name for name in before if not name.startswith("language_model.")}


@pytest.mark.release
def test_adapters_of_experts_and_of_shared_ones_train_alike_under_all_strategies(
    make_job: Any, small: Path, tmp_path: Path, alone: Worker
) -> None:
    prepare("GLM-4-MoE", small, tmp_path)

    def made(name: str, **keys: Any) -> RunSpec:
        job: RunSpec = make_job(
            name, adapter=Adapter(rank=2), max_steps=3, micro_batch_size=4, **keys
        )
        return replace(job, start=tmp_path / "model", parts=(Part("data", tmp_path / "tokens"),))

    one, jobs = made("one"), [made(engine, **ENGINES[engine]) for engine in ON_TWO]
    train(one, alone)
    train_all(jobs, 2, "torchrun", tmp_path / "workers")
    for job in jobs:
        assert losses(job) == pytest.approx(losses(one), rel=1e-5), job.settings.strategy


def test_rows_of_one_document_each_train_where_they_could_be_packed(
    small: Path, make_job: Any, alone: Worker, tmp_path: Path
) -> None:
    prepare("GPT-2", small, tmp_path, packing=False)
    split = StoredSplit(tmp_path / "tokens", "train")
    assert len(split) == len(split.segments)
    check_losses(make_job(max_steps=2, learning_rate=1e-3), tmp_path, alone)


def test_rows_that_are_not_packed_are_announced(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare("OPT", small, tmp_path)
    assert (
        "each row holds one document, because packed documents would attend to each other in opt"
    ) in capsys.readouterr().err
