"""How many rows `micro_batch_size: auto` takes, without a GPU."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from architectures import ROUTED
from transformers import LlamaConfig

from moray.config.schema.train import Train
from moray.extras.memory_plan.demand import Demand
from moray.extras.memory_plan.fit import rows_that_fit
from moray.extras.memory_plan.setup import Setup
from moray.provenance.manifest import write_manifest
from moray.train.micro_batch import with_micro_batch_size
from moray.train.spec import Part, RunSpec
from moray.workers.entry import Worker

SHAPE = LlamaConfig(
    hidden_size=512,
    num_hidden_layers=2,
    num_attention_heads=8,
    intermediate_size=1408,
    vocab_size=32_000,
    max_position_embeddings=512,
)
# Of what is usable, in a card of so many bytes.
USABLE = 0.92


@pytest.fixture
def job(tmp_path: Path) -> RunSpec:
    SHAPE.save_pretrained(tmp_path / "model")
    (tmp_path / "model/model.safetensors").touch()
    (tmp_path / "rows").mkdir()
    write_manifest(tmp_path / "rows", task="language", block_size=512, recipe={"packing": True})
    settings = Train(micro_batch_size="auto", global_batch_size=64)
    part = Part("data", tmp_path / "rows")
    return RunSpec("name", tmp_path / "model", (part,), settings)


def needed(job: RunSpec, workers: int, micro_batch_size: int) -> float:
    """Bytes for micro-batches of so many rows."""
    settings = job.settings.model_copy(update={"micro_batch_size": micro_batch_size})
    setup = Setup("m", job.start, 512, settings, None, workers, "cuda")
    return Demand(setup).total(micro_batch_size)


@pytest.mark.long
@pytest.mark.parametrize(("workers", "share"), [(1, 64), (2, 32)])
def test_the_rows_of_a_step_are_one_micro_batch_where_they_fit(
    job: RunSpec, workers: int, share: int
) -> None:
    just_enough = int(needed(job, workers, share) / USABLE) + 1
    assert rows_that_fit(job, workers, just_enough) == share
    assert rows_that_fit(job, workers, just_enough - 10**6) < share


def test_otherwise_one_more_row_would_not_fit(job: RunSpec) -> None:
    capacity = 3 * 10**9
    rows = rows_that_fit(job, 1, capacity)
    assert 1 < rows < 63
    assert needed(job, 1, rows) <= USABLE * capacity < needed(job, 1, rows + 1)


def test_a_row_is_tried_even_on_the_smallest_card(job: RunSpec) -> None:
    assert rows_that_fit(job, 1, 10**6) == 1


def test_rows_of_pairs_are_as_many_as_fit(job: RunSpec, tmp_path: Path) -> None:
    recipe = {"packing": True}
    write_manifest(tmp_path / "rows", task="preference", block_size=512, recipe=recipe)
    job = replace(job, task_settings={"preference": {"loss": "simpo"}})
    assert rows_that_fit(job, 1, 10**12) == 64
    assert 1 < rows_that_fit(job, 1, 3 * 10**9) < 63


def test_other_tasks_take_what_cpus_take(job: RunSpec, tmp_path: Path) -> None:
    write_manifest(tmp_path / "rows", task="images")
    assert rows_that_fit(job, 1, 10**12) == 8


def test_a_model_that_can_not_be_planned_takes_what_cpus_take(job: RunSpec) -> None:
    ROUTED["JetMoE"]().save_pretrained(job.start)
    assert rows_that_fit(job, 1, 10**12) == 8


@pytest.mark.parametrize("gigabytes", [1, 3])
def test_a_worker_with_a_gpu_takes_the_rows_that_fit(
    job: RunSpec, gigabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed on it, so none has to be here."""
    card = SimpleNamespace(total_memory=gigabytes * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    chosen = with_micro_batch_size(job, Worker(0, 1, torch.device("cuda", 0)))
    assert chosen.settings.micro_batch_size == rows_that_fit(job, 1, card.total_memory)
