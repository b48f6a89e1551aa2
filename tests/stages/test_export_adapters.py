"""Exports of adapters: merged, and by themselves."""

import gc
import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conversations import CHATML
from exported import run, train_run
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM, PeftConfig, PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)

from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.model.adapter import merged
from moray.model.load import empty_model, load_model
from moray.model.quantization import Quantization
from moray.proofs.comparison import read_proof
from moray.provenance.manifest import damaged_files, write_manifest
from moray.tasks.language import export as export_text
from moray.tasks.language.loss import TokenLoss, has_plain_head, make_batch
from moray.tasks.language.rows import StoredSplit
from moray.tasks.language.tokenizer import stop_token_ids
from moray.train.checkpoint.load import trained_model


def test_adapters_that_are_merged_by_another_factor_are_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, tmp_path / "trained", ignore=shutil.ignore_patterns("run"))
    # After two steps, an adapter has changed little.
    train_run(tmp_path / "trained", "adapted", Adapter(rank=4, alpha=512))

    def twice(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
        config = folder / "adapter_config.json"
        read = json.loads(config.read_text())
        config.write_text(json.dumps(read | {"lora_alpha": 2 * read["lora_alpha"]}))
        return merged(base, folder)

    monkeypatch.setattr(export_text, "merged", twice)
    with pytest.raises(UserError, match="in loss of the exported model on validation rows: "):
        run(tmp_path / "trained", tmp_path / "model", "adapted")
    assert not (tmp_path / "model").exists()


def test_an_adapter_of_a_quantized_base_may_have_another_loss_on_the_whole_one(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "trained", ignore=shutil.ignore_patterns("run"))
    train_run(tmp_path / "trained", "adapted", Adapter(rank=4))
    history = tmp_path / "trained/adapted/history.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    for line in lines:
        if "eval_sample" in line:
            line["eval_sample"]["loss"] *= 1.1
    history.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(UserError, match="in loss of the exported model on validation rows: "):
        run(tmp_path / "trained", tmp_path / "model", "adapted")
    record = tmp_path / "trained/adapted/train.json"
    of_quantized = json.loads(record.read_text())
    of_quantized["adapter"]["quantize_base"] = "4bit"
    record.write_text(json.dumps(of_quantized))
    run(tmp_path / "trained", tmp_path / "model", "adapted")
    (compared,) = [one for one in read_proof(tmp_path / "model") if "exported" in one["what"]]
    assert not compared["holds"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True, "use_rslora": True},
        {"init_lora_weights": "pissa_niter_4", "rank_pattern": {"q_proj": 2}},
        {"init_lora_weights": "olora", "target_modules": ".*_proj", "base_dtype": "bf16"},
    ],
)
def test_adapters_are_merged_into_the_model_and_lie_beside_it(
    trained: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    shutil.copytree(trained, tmp_path / "trained", ignore=shutil.ignore_patterns("run"))
    train_run(tmp_path / "trained", "adapted", Adapter(rank=4, **settings))
    folder = run(tmp_path / "trained", tmp_path / "model", "adapted")
    assert damaged_files(folder) == []
    card = ModelCard.load(folder / "README.md")
    kind = "DoRA" if "use_dora" in settings else "LoRA"
    names = settings.get("target_modules", "all-linear")
    assert card.data.tags == ["lora", "moray"]
    assert f"| {kind} adapter | rank 4, alpha 16, on `{names}`, merged" in card.text
    whole, base = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (folder, trained / "start")
    )
    assert whole.state_dict().keys() == base.state_dict().keys()
    tokens = torch.arange(32).unsqueeze(0)
    with torch.no_grad():
        merged, before = whole(tokens).logits, base(tokens).logits
        beside = PeftModel.from_pretrained(base, str(folder / "adapter"))(tokens).logits
    assert (merged - before).abs().max() > 1e-2
    torch.testing.assert_close(beside, merged, rtol=1e-5, atol=1e-5)


def test_before_adapters_are_merged_the_model_that_they_were_read_into_is_gone(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one fits into memory once."""
    first: list[weakref.ref[PreTrainedModel]] = []

    def seen(*arguments: Any) -> PreTrainedModel:
        model = trained_model(*arguments)
        first.append(weakref.ref(model))
        return model

    def load_again(start: Path, dtype: torch.dtype) -> PreTrainedModel:
        gc.collect()
        assert not first or first[0]() is None
        return load_model(start, dtype)

    monkeypatch.setattr(export_text, "trained_model", seen)
    monkeypatch.setattr(export_text, "load_model", load_again)
    shutil.copytree(trained, tmp_path / "trained", ignore=shutil.ignore_patterns("run"))
    train_run(tmp_path / "trained", "adapted", Adapter(rank=4))
    run(tmp_path / "trained", tmp_path / "model", "adapted")
    assert len(first) == 1


def held_out_loss(model: Any, tokens: Path) -> float:
    batch = make_batch(np.asarray(StoredSplit(tokens, "test").rows))
    with torch.no_grad():
        total = TokenLoss(model.eval(), has_plain_head(model))(batch)
    return float(total) / len(batch.targets)


@pytest.fixture(scope="module")
def chain(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`start`; an adapter on it in `first`; another on that in `second`; a merged twin of each.

    In `longer`, the one of `first` was trained on.
    """
    folder = tmp_path_factory.mktemp("chain")
    for name in ("start", "tokens"):
        shutil.copytree(trained / name, folder / name)
    new = Adapter(rank=4)
    same = new.model_copy(update={"create_new_adapter": False})
    runs = (("first", "start", new), ("second", "first", new), ("longer", "first", same))
    for name, start, adapter in runs:
        train_run(folder, f"run of {name}", adapter, start)
        run(folder, folder / name, f"run of {name}", start, merge_adapter=False)
        run(folder, folder / f"merged {name}", f"run of {name}", start)
    return folder


@pytest.mark.parametrize("name", ["first", "second", "longer"])
def test_an_adapter_by_itself_is_loaded_as_the_model_it_would_be_merged_into(
    chain: Path, name: str
) -> None:
    assert damaged_files(chain / name) == []
    assert not list((chain / name).glob("model*.safetensors"))
    assert not (chain / name / "config.json").exists()
    merged = AutoModelForCausalLM.from_pretrained(chain / f"merged {name}").state_dict()
    loaded = load_model(chain / name)
    assert not loaded.training
    assert loaded.state_dict().keys() == merged.keys()
    for key, value in loaded.state_dict().items():
        torch.testing.assert_close(value, merged[key], rtol=0, atol=0)
    half = load_model(chain / name, dtype=torch.bfloat16)
    for key, value in half.state_dict().items():
        assert torch.equal(value, merged[key].bfloat16())
    # Angles of rotary positions among them, which aren't stored.
    whole = load_model(chain / f"merged {name}", dtype=torch.bfloat16)
    for (key, buffer), expected in zip(half.named_buffers(), whole.buffers(), strict=True):
        assert buffer.dtype == expected.dtype, key
        assert torch.equal(buffer, expected), key
    tokenizer = AutoTokenizer.from_pretrained(chain / name)
    assert tokenizer.chat_template == CHATML
    assert stop_token_ids(tokenizer, chain / name) == stop_token_ids(tokenizer, chain / "start")
    # One that was trained on isn't on top of what its run started from.
    below = chain / "start" if name == "longer" else "models/chat"
    assert f"only the adapter, which is loaded on top of `{below}`" in (
        chain / name / "README.md"
    ).read_text().replace("\n", " ")


def test_peft_loads_an_adapter_by_itself_onto_its_base_with_the_same_loss(chain: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(chain / "start")
    before = held_out_loss(base, chain / "tokens")
    by_peft = PeftModel.from_pretrained(base, str(chain / "first")).get_base_model()
    found = held_out_loss(by_peft, chain / "tokens")
    assert found < 0.99 * before
    assert held_out_loss(load_model(chain / "first"), chain / "tokens") == pytest.approx(
        found, rel=1e-5
    )


def test_peft_finds_the_base_of_an_adapter_by_itself(chain: Path) -> None:
    tokens = torch.arange(32).unsqueeze(0)
    by_peft: Any = AutoPeftModelForCausalLM.from_pretrained(str(chain / "first"))
    with torch.no_grad():
        expected = load_model(chain / "first")(tokens).logits
        torch.testing.assert_close(by_peft(tokens).logits, expected, rtol=1e-5, atol=1e-5)
    # It would drop one of two.
    assert PeftConfig.from_pretrained(str(chain / "second")).base_model_name_or_path is None


def test_an_adapter_that_was_trained_on_is_one_adapter_on_the_base_of_the_first(
    chain: Path,
) -> None:
    first, longer = (PeftConfig.from_pretrained(str(chain / name)) for name in ("first", "longer"))
    assert longer.to_dict() == first.to_dict()
    before, after = (
        load_file(chain / name / "adapter_model.safetensors") for name in ("first", "longer")
    )
    assert before.keys() == after.keys()
    changes = {name: (after[name] - before[name]).abs().max().item() for name in before}
    # Two steps of AdamW, at a rate of 0.01, which isn't far from where they began.
    assert 0 < min(changes.values()) <= max(changes.values()) < 0.03
    base = AutoModelForCausalLM.from_pretrained(chain / "start")
    by_peft = PeftModel.from_pretrained(base, str(chain / "longer")).get_base_model()
    found = held_out_loss(by_peft, chain / "tokens")
    assert held_out_loss(load_model(chain / "longer"), chain / "tokens") == pytest.approx(
        found, rel=1e-5
    )
    assert found < held_out_loss(load_model(chain / "first"), chain / "tokens")


@pytest.mark.parametrize("alone", [True, False])
def test_an_adapter_names_its_base_on_the_hub_unless_it_was_changed(
    alone: bool, chain: Path, tmp_path: Path
) -> None:
    shutil.copytree(chain, tmp_path / "chain")
    section = {"source": "hub", "repo_id": "owner/name", "revision": "0" * 40}
    changed, start = {"new_tokens": ["<|a|>"]}, tmp_path / "chain/start"
    places = ((section, ("owner/name", "0" * 40)), (section | changed, (str(start), None)))
    for number, (made, expected) in enumerate(places):
        write_manifest(start, model=made)
        output = tmp_path / str(number)
        run(tmp_path / "chain", output, "run of first", merge_adapter=not alone)
        config = PeftConfig.from_pretrained(str(output if alone else output / "adapter"))
        assert (config.base_model_name_or_path, config.revision) == expected


def test_an_adapter_by_itself_has_the_type_that_the_config_names(
    chain: Path, tmp_path: Path
) -> None:
    for dtype, kind in (("auto", torch.float32), ("bf16", torch.bfloat16)):
        folder = run(chain, tmp_path / dtype, "run of first", merge_adapter=False, dtype=dtype)
        weights = load_file(folder / "adapter_model.safetensors")
        assert {value.dtype for value in weights.values()} == {kind}


def test_a_folder_moved_with_its_base_is_loaded_and_one_without_is_refused(
    chain: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(chain, tmp_path / "moved"))
    load_model(moved / "second")
    shutil.rmtree(moved / "start")
    with pytest.raises(UserError) as caught:
        load_model(moved / "second")
    assert str(caught.value).startswith(
        f"{moved}/first: the base of this adapter is missing: no model in {moved}/start; "
    )


def test_a_base_that_has_changed_is_refused(chain: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(chain, tmp_path / "moved"))
    write_manifest(moved / "start", changed=True)
    for load in (load_model, empty_model):
        with pytest.raises(UserError, match="has changed since the adapter was trained"):
            load(moved / "first")


def test_an_adapter_by_itself_is_not_merged_into_4_bit_weights(chain: Path) -> None:
    with pytest.raises(UserError, match=r"^adapter\.quantize_base: .* contains only an adapter"):
        load_model(chain / "first", quantization=Quantization("8bit"))


def test_the_base_is_the_one_of_the_manifest_and_no_other(chain: Path, tmp_path: Path) -> None:
    """A path in adapter_config.json would be followed by transformers, wherever it leads."""
    moved = Path(shutil.copytree(chain, tmp_path / "moved"))
    config = moved / "first/adapter_config.json"
    other = shutil.copytree(chain / "merged second", tmp_path / "other")
    keys = json.loads(config.read_text()) | {"base_model_name_or_path": str(other)}
    config.write_text(json.dumps(keys))
    for key, value in load_model(moved / "first").state_dict().items():
        assert torch.equal(value, load_model(chain / "first").state_dict()[key])
