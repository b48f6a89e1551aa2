"""Faults planted into training, and the comparison with plain transformers that finds them."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet import losses
from jobs import Make, job_maker
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from moray.config.schema.base import result_keys
from moray.config.schema.losses import Preference
from moray.config.schema.sections import Data
from moray.config.schema.train import Adapter
from moray.corpus.dataset import SPLITS, Document
from moray.corpus.documents import write_dataset
from moray.errors import UserError
from moray.model import adapter as adapters
from moray.model.load import load_model
from moray.provenance.manifest import write_manifest
from moray.tasks.language import task as language
from moray.tasks.language.loss import TokenBatch, make_batch
from moray.tasks.language.tokenize import tokenize
from moray.tasks.preference import task as preference
from moray.train import loop, proof
from moray.train.loop import train
from moray.train.step import gradients
from moray.workers.entry import Worker

Plant = Callable[[pytest.MonkeyPatch], None]
ADAPTER = Adapter(rank=4, alpha=8)


@pytest.fixture(scope="module")
def attentive(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `small`, with rows of several documents, and larger weights.

    Fresh ones hardly look at the tokens before.
    """
    folder = tmp_path_factory.mktemp("attentive")
    shutil.copytree(small / "model", folder / "model")
    file = folder / "model/model.safetensors"
    weights = load_file(file)
    larger = {name: 5 * weight if weight.dim() == 2 else weight for name, weight in weights.items()}
    save_file(larger, file, {"format": "pt"})
    write_manifest(folder / "model", architecture="llama", isolates_documents=True)
    texts = [f"def f_{number}(x): return x + {number}" for number in range(200)]
    rows = (
        (SPLITS[max(0, number % 9 - 6)], Document(text=text)) for number, text in enumerate(texts)
    )
    write_dataset(folder / "dataset", rows, "text", {"source": "test"})
    cfg = {"format": "text", **result_keys(Data(block_size=64))}
    tokenize(folder / "dataset", folder / "model", folder / "tokens", cfg)
    return folder


def proofs_of(job: Any) -> list[dict[str, Any]]:
    lines = map(json.loads, (job.work / "history.jsonl").read_text().splitlines())
    return [one for line in lines for one in line.get("proof", ())]


@pytest.mark.parametrize("adapter", [None, ADAPTER])
def test_a_run_records_both_figures_of_its_first_step(
    make_job: Make, alone: Worker, adapter: Adapter | None
) -> None:
    job = make_job(max_steps=1, adapter=adapter)
    train(job, alone)
    found = proofs_of(job)
    loss = found[0]
    assert loss["what"] == "loss before the first step"
    assert loss["here"] == pytest.approx(loss["plain"], rel=1e-5)
    assert loss["rows"] == 8
    # The gradient of an adapter follows from its random weights.
    assert [one["what"] for one in found[1:]] == (
        [] if adapter else ["gradient norm of the first step"]
    )
    assert all(one["holds"] for one in found)
    (logged,) = losses(job)
    assert loss["here"] == pytest.approx(logged, rel=1e-5)


def changed_batches(change: Callable[[TokenBatch], TokenBatch]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(language, "make_batch", lambda rows: change(make_batch(rows)))

    return plant


def shift(batch: TokenBatch) -> TokenBatch:
    return dataclasses.replace(batch, targets=batch.input_ids.flatten()[batch.target_indices])


def join_documents(batch: TokenBatch) -> TokenBatch:
    columns = torch.arange(batch.input_ids.shape[1]).expand_as(batch.input_ids)
    return dataclasses.replace(batch, position_ids=columns.contiguous())


def with_frozen_layer(patch: pytest.MonkeyPatch) -> None:
    def loaded(*arguments: Any, **named: Any) -> Any:
        model = load_model(*arguments, **named)
        model.model.layers[0].requires_grad_(False)
        return model

    patch.setattr(language, "load_model", loaded)


def with_nonzero_adapter(patch: pytest.MonkeyPatch) -> None:
    add = adapters.add_adapter

    def added(model: nn.Module, *arguments: Any) -> None:
        add(model, *arguments)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                nn.init.constant_(weight, 0.05)

    patch.setattr(adapters, "add_adapter", added)


def with_other_denominator(patch: pytest.MonkeyPatch) -> None:
    def divided(strategy: Any, batches: Any, weight: float, *others: Any) -> Tensor:
        return gradients(strategy, batches, weight * 2, *others)

    patch.setattr(loop, "gradients", divided)


@pytest.mark.parametrize(
    ("plant", "adapter", "what"),
    [
        (changed_batches(shift), None, "loss before the first step"),
        (changed_batches(join_documents), None, "loss before the first step"),
        (with_nonzero_adapter, ADAPTER, "loss before the first step"),
        (with_frozen_layer, None, "gradient norm of the first step"),
        (with_other_denominator, None, "gradient norm of the first step"),
    ],
    ids=["shifted", "joined", "adapter", "frozen", "denominator"],
)
def test_a_planted_fault_stops_the_run_before_anything_is_saved(
    alone: Worker,
    attentive: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Plant,
    adapter: Adapter | None,
    what: str,
) -> None:
    plant(monkeypatch)
    job = job_maker(attentive, tmp_path)(adapter=adapter)
    with pytest.raises(UserError, match=f"differs from the plain library in {what}: ") as caught:
        train(job, alone)
    assert "transformers" in caught.value.problem
    assert not list(job.work.rglob("*.distcp"))


def test_a_warning_lets_the_run_go_on(
    make_job: Make,
    alone: Worker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed_batches(shift)(monkeypatch)
    job = dataclasses.replace(make_job(max_steps=2), proofs="warn")
    assert train(job, alone)["ended"]
    assert [one["holds"] for one in proofs_of(job)] == [False, False]
    assert "warning: training: loss before the first step: " in capsys.readouterr().err


def test_without_proofs_nothing_is_compared(
    make_job: Make, alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_batches(shift)(monkeypatch)
    job = dataclasses.replace(make_job(max_steps=2), proofs="off")
    assert train(job, alone)["ended"]
    assert proofs_of(job) == []


def test_a_model_too_large_for_the_time_is_not_compared(
    make_job: Make, alone: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "num_affordable", lambda *arguments: 0)
    job = make_job(max_steps=1)
    train(job, alone)
    (found,) = proofs_of(job)
    assert found["plain"] is None
    assert found["skipped"].startswith("loading the model again")


def test_a_reference_of_another_model_stops_a_preference_run(
    preferences: Path, alone: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = job_maker(preferences, tmp_path, "reference", preference=result_keys(Preference()))
    train(make("right", max_steps=1), alone)
    as_batch = preference.make_pair_batch

    def scaled(*arguments: Any) -> Any:
        batch = as_batch(*arguments)
        return dataclasses.replace(batch, reference=batch.reference * torch.tensor([1.0, 1.01]))

    monkeypatch.setattr(preference, "make_pair_batch", scaled)
    with pytest.raises(UserError, match=r"loss before the first step: .*: 0\.693147 on"):
        train(make("wrong", max_steps=1), alone)
