"""What is said to be trained, held against PEFT's own count and the names of its weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import HYBRID, PACKED, UNPACKED, build
from engines import ENGINES, ON_TWO
from fleet import train_all, train_and_record
from peft import PeftModel
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaForCausalLM,
    PreTrainedModel,
)

from moray.config import extras
from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.adapter import add_adapter, save_adapter
from moray.model.folder import base_reference
from moray.model.forward import freeze_unused
from moray.model.load import load_model
from moray.provenance.manifest import write_manifest
from moray.train.history import HISTORY, read_history
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.train.trained import trained_of
from moray.workers.entry import Worker

KNOWN = PACKED | UNPACKED | HYBRID


def by_peft(model: PreTrainedModel) -> tuple[int, int]:
    trained, whole = PeftModel.get_nb_trainable_parameters(model)
    return trained, whole


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=[] if name in ("Llama", "Mixtral") else pytest.mark.long)
        for name in KNOWN
    ],
)
def test_an_adapter_has_as_many_parameters_as_peft_counts(architecture: str) -> None:
    model = build(KNOWN[architecture]())
    adapter = Adapter(rank=2)
    add_adapter(model, adapter, seed=0)
    found = trained_of(model, adapter)
    assert (found.parameters, found.total) == by_peft(model)
    assert sum(parameters for _, parameters in found.layers.values()) == found.parameters
    # Each layer has one `lora_A`.
    pairs = [name for name, weight in model.named_parameters() if weight.requires_grad]
    count = sum(layers for layers, _ in found.layers.values())
    assert count == len([name for name in pairs if ".lora_A." in name])


def test_kinds_of_layers_are_counted() -> None:
    model = build(KNOWN["Mixtral"]())
    adapter = Adapter(rank=2, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"])
    add_adapter(model, adapter, seed=0)
    found = trained_of(model, adapter)
    # Width 32, 4 heads of width 8, 4 experts of width 48; both projections of a gate have a rank.
    parameters = {
        "q_proj": 2 * 2 * (32 + 32),
        "experts.gate_up_proj": 2 * 4 * 4 * (32 + 2 * 48),
        "experts.down_proj": 2 * 4 * 2 * (48 + 32),
    }
    assert found.layers == {kind: (2, parameters[kind]) for kind in parameters}
    assert str(found) == (
        "trained: 2 q_proj, 2 experts.gate_up_proj, 2 experts.down_proj, "
        f"{sum(parameters.values()):,} of {found.total:,} parameters"
    )


def test_layers_that_are_trained_whole_beside_adapters_are_named() -> None:
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_labels=3,
    )
    model = BertForSequenceClassification(config)
    adapter = Adapter(rank=2, target_modules=["query"])
    add_adapter(model, adapter, seed=0)
    assert trained_of(model, adapter).layers == {
        "query": (2, 2 * 2 * (16 + 16)),
        "pooler": (1, 16 * 16 + 16),
        "classifier": (1, 16 * 3 + 3),
    }


def test_tied_weights_count_once_and_rows_of_new_tokens_as_an_embedding(model_folder: Path) -> None:
    config = load_model(model_folder).config
    config.tie_word_embeddings, config.new_token_ids = True, [5, 6, 7]
    model = LlamaForCausalLM(config)
    whole = trained_of(model, None)
    assert whole.parameters == whole.total == model.num_parameters()
    adapter = Adapter(rank=2, target_modules=["q_proj"])
    add_adapter(model, adapter, seed=0)
    found = trained_of(model, adapter)
    assert found.layers["embed_tokens"] == (1, 3 * config.hidden_size)
    assert (found.parameters, found.total) == by_peft(model)


def test_parts_that_stay_frozen_are_named() -> None:
    model = build(KNOWN["Gemma 3 with images"]())
    freeze_unused(model)
    found = trained_of(model, None)
    tower = sum(weight.numel() for weight in model.model.vision_tower.parameters())
    projector = sum(weight.numel() for weight in model.model.multi_modal_projector.parameters())
    assert found.frozen == {"vision_tower": tower, "multi_modal_projector": projector}
    text = model.num_parameters() - tower - projector
    assert str(found) == (
        f"trained: {text:,} of {text + tower + projector:,} parameters; frozen: vision_tower "
        f"{tower:,}, multi_modal_projector {projector:,}"
    )


def test_if_nothing_is_trained_it_costs_one_line() -> None:
    model = build(KNOWN["Gemma 3 with images"]())
    adapter = Adapter(target_modules=["fc1"])
    add_adapter(model, adapter, seed=0)
    with pytest.raises(UserError) as caught:
        trained_of(model, adapter)
    assert str(caught.value) == (
        "adapter.target_modules: got ['fc1'], of which nothing would be trained, because text "
        "doesn't pass these layers; name layers of the decoder, or choose all-linear"
    )
    for weight in model.parameters():
        weight.requires_grad_(False)
    with pytest.raises(UserError, match=r"^model: all .* parameters are frozen, so nothing would"):
        trained_of(model, None)


def test_it_is_said_before_the_first_step_and_recorded(make_job: Any, alone: Worker) -> None:
    job = make_job(adapter=Adapter(rank=2, target_modules=["q_proj", "v_proj"]), max_steps=1)
    facts = train(job, alone)
    count = 2 * 2 * 2 * (32 + 32)
    first = next(iter(read_history(job.work / HISTORY)))
    assert first["note"].startswith(f"trained: 2 q_proj, 2 v_proj, {count:,} of ")
    each = {"layers": 2, "parameters": count // 2}
    total = facts["trained"]["of"]
    assert facts["trained"] == {
        "parameters": count,
        "of": load_model(job.start).num_parameters() + count,
        "layers": {"q_proj": each, "v_proj": each},
        "frozen": {},
    }
    assert f"{count:,} of {total / 1e6:.1f} M" in first["note"] or f"{total:,}" in first["note"]


@pytest.mark.long
def test_all_workers_of_all_strategies_count_the_same(
    make_job: Any, small: Path, tmp_path: Path
) -> None:
    """Also those of FSDP2 that have no weights; and of a start whose adapter was exported alone."""
    adapter = Adapter(rank=2, target_modules=["q_proj"])
    model = load_model(small / "model")
    add_adapter(model, adapter, seed=0)
    save_adapter(model, adapter, tmp_path / "alone", torch.float32)
    write_manifest(tmp_path / "alone", base=base_reference(tmp_path / "alone", small / "model"))
    in_4bit = Adapter(rank=2, target_modules=["q_proj"], quantize_base="4bit")
    jobs: dict[str, RunSpec] = {}
    for engine in ON_TWO:
        keys = {**ENGINES[engine], "max_steps": 1, "micro_batch_size": 4}
        jobs[f"{engine} adapter"] = make_job(f"{engine} adapter", adapter=adapter, **keys)
        whole = make_job(f"{engine} whole", **keys)
        jobs[f"{engine} whole"] = replace(whole, start=tmp_path / "alone")
        if extras.is_there("quantized_base") and not engine.startswith("zero"):
            jobs[f"{engine} 4bit"] = make_job(f"{engine} 4bit", adapter=in_4bit, **keys)
    train_all([*jobs.values()], 2, "torchrun", tmp_path / "launch", train_and_record)
    expected = {
        "adapter": trained_of(model, adapter).facts,
        "4bit": trained_of(model, adapter).facts,
        "whole": trained_of(load_model(small / "model"), None).facts,
    }
    for name, job in jobs.items():
        for rank in range(2):
            facts = json.loads((job.work / f"facts-{rank}.json").read_text())
            assert facts["trained"] == expected[name.split()[1]], name
