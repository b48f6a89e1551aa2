"""`moray plan`, before anything is made or downloaded."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from present import needs
from small_config import config_with, experiment_with
from transformers import LlamaConfig, MixtralConfig
from typer.testing import CliRunner

from moray.cli import app
from moray.config import extras, plan
from moray.config.recorded import existing_model_folder
from moray.config.schema.train import Adapter, Train
from moray.extras.memory_plan.advice import Advice, Change
from moray.extras.memory_plan.demand import Demand
from moray.extras.memory_plan.setup import Setup
from moray.extras.memory_plan.start import accepted_by_check
from moray.extras.memory_plan.start import setup_of as planned_setup
from moray.provenance.manifest import write_manifest
from moray.train.memory import scale_bytes

SHAPE = LlamaConfig(
    hidden_size=1024,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    intermediate_size=2816,
    vocab_size=32_000,
    max_position_embeddings=2048,
    tie_word_embeddings=False,
)


def planned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], *arguments: str
) -> tuple[int, str]:
    """The exit status of the command for a project with these values, and its output.

    Without the line that it begins with, as long as libraries are imported.
    """
    monkeypatch.chdir(folder)
    Path("config").mkdir()
    Path("config/config.yaml").write_text(yaml.safe_dump(config_with(values)))
    done = CliRunner().invoke(app, ["plan", *arguments])
    before, _, after = done.output.partition("computing the memory of a worker ...\n")
    return done.exit_code, after or before


def setup_of(folder: Path, adapter: Adapter | None = None, **train: Any) -> Setup:
    SHAPE.save_pretrained(folder)
    keys = {"micro_batch_size": 2, "global_batch_size": 2, **train}
    return Setup("models.m", folder, 512, Train(**keys), adapter, workers=1, device="cuda")


def test_a_model_from_scratch_is_planned_from_the_config_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, output = planned(tmp_path, monkeypatch, {}, "base")
    assert status == 0, output
    assert "saved activations" in output
    assert "80 GB: fits" in output
    # Of a small model, everything would be 0.00 GB, and 0.0 of 0.0 million weights.
    assert " GB" not in output.partition("assumes")[0]
    assert re.search(r"in all +\d+\.\d\d MB", output)
    assert not (tmp_path / "results").exists()


def test_a_model_that_was_made_of_other_settings_is_not_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = experiment_with({"models.folder.path": "old", "runs.base.model": "folder"})
    made = Path("results/models/folder")
    SHAPE.save_pretrained(made)
    assert existing_model_folder(experiment, "folder") is None
    write_manifest(made, model=plan.model_config(experiment, "folder"))
    assert existing_model_folder(experiment, "folder") == made
    other = experiment_with({"models.folder.path": "new", "runs.base.model": "folder"})
    assert existing_model_folder(other, "folder") is None
    LlamaConfig(hidden_size=64, num_attention_heads=2).save_pretrained("new")
    with planned_setup(other, "base") as setup:
        assert setup.folder == Path("new")
    with planned_setup(experiment, "base") as setup:
        assert setup.folder == made


def test_an_overlay_is_merged_over_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.yaml").write_text("defaults: {data: {block_size: 24}}")
    overlay = ("--configfile", "other.yaml")
    _, output = planned(tmp_path, monkeypatch, {}, "base", *overlay)
    assert "1 row of 24 tokens" in output, output


@pytest.mark.parametrize(
    ("values", "run", "error"),
    [
        ({}, "bas", "runs.bas: there is no such run; name one of"),
        (
            {"runs.base.data.block_size": 9999},
            "base",
            "runs.base.data.block_size: makes sequences of 9999 tokens, expected at most ",
        ),
        (
            {"models.tiny": {"source": "hub", "repo_id": "a/b", "revision": "0" * 40}},
            "base",
            "models.tiny: can't download config.json of a/b",
        ),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_line(
    values: dict[str, Any],
    run: str,
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It tries for half a minute.
    monkeypatch.setattr("moray.model.obtain.hub_config", lambda *repository: None)
    status, output = planned(tmp_path, monkeypatch, values, run)
    assert status == 1
    assert output.startswith(f"error: {error}"), output
    assert len(output.splitlines()) == 1


MIXTURE = MixtralConfig(
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=512,
    num_local_experts=8,
    vocab_size=2000,
    max_position_embeddings=512,
)


@pytest.mark.parametrize("bits", [None, pytest.param("4bit", marks=needs("quantized_base"))])
def test_a_mixture_of_experts_is_planned(
    bits: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MIXTURE.save_pretrained(tmp_path / "mixture")
    (tmp_path / "mixture/model.safetensors").touch()
    values: dict[str, Any] = {"models.tiny": {"source": "path", "path": "mixture"}}
    if bits:
        values["runs.base.adapter"] = {"rank": 4, "base_dtype": "bf16", "quantize_base": bits}
    status, output = planned(tmp_path, monkeypatch, values, "base")
    assert status == 0, output
    assert "24 GB: fits" in output


@needs("quantized_base")
def test_8_bits_are_refused_for_a_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MIXTURE.save_pretrained(tmp_path / "mixture")
    (tmp_path / "mixture/model.safetensors").touch()
    values = {
        "models.tiny": {"source": "path", "path": "mixture"},
        "runs.base.adapter": {"rank": 4, "base_dtype": "bf16", "quantize_base": "8bit"},
    }
    status, output = planned(tmp_path, monkeypatch, values, "base")
    assert status == 1
    assert output.startswith("error: runs.base.adapter.quantize_base: 8bit doesn't quantize")
    assert len(output.splitlines()) == 1


@needs("quantized_base")
def test_8_bits_are_not_advised_for_a_mixture(tmp_path: Path) -> None:
    setup = replace(
        setup_of(tmp_path, gradient_checkpointing="offload", micro_batch_size=1),
        adapter=Adapter(base_dtype="bf16"),
    )
    MIXTURE.save_pretrained(tmp_path)
    four = replace(setup, adapter=Adapter(base_dtype="bf16", quantize_base="4bit"))
    change = Advice(setup).change(Demand(four).total(1))
    assert change is not None
    assert change.keys[0] == "adapter.quantize_base: 4bit"


@pytest.mark.parametrize(
    ("format", "section"),
    [
        ("preference", {"preference": {"loss": "simpo"}}),
        ("unpaired-preference", {}),
        ("text", {"distillation": {"teacher": "tiny", "top_k": 8}}),
    ],
)
def test_runs_on_answers_and_with_a_teacher_are_planned(
    format: str, section: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {f"runs.base.{key}": value for key, value in section.items()}
    if format != "text":
        rows = {"source": "files", "path": "rows.jsonl", "format": format}
        values |= {"datasets.rows": rows, "runs.base.dataset": "rows"}
    status, output = planned(tmp_path, monkeypatch, values, "base")
    assert status == 0, output
    assert "logits and loss" in output
    assert "80 GB: fits" in output


@pytest.mark.long
@needs("adamw_8bit", "bf16_weights", "quantized_base")
def test_changes_are_tried_from_the_cheapest_on(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, micro_batch_size=1, global_batch_size=1)
    advice = Advice(setup)
    checkpointing = setup.with_train(gradient_checkpointing=True)
    eight = checkpointing.with_train(optimizer="adamw_8bit")
    both = eight.with_train(weights="bf16")
    lora = replace(checkpointing, adapter=Adapter(base_dtype="bf16"))
    bits8, bits4 = (
        replace(lora, adapter=Adapter(base_dtype="bf16", quantize_base=bits))
        for bits in ("8bit", "4bit")
    )
    first = ("train.gradient_checkpointing: true",)
    expected = {
        first: checkpointing,
        (*first, "train.optimizer: adamw_8bit"): eight,
        (*first, "train.optimizer: adamw_8bit", "train.weights: bf16"): both,
        (*first, "adapter.base_dtype: bf16"): lora,
        (*first, "adapter.base_dtype: bf16", "adapter.quantize_base: 8bit"): bits8,
        (*first, "adapter.base_dtype: bf16", "adapter.quantize_base: 4bit"): bits4,
    }
    limit = advice.demand(setup).total(1)
    for keys, changed in expected.items():
        before, limit = limit, advice.demand(changed).total(1)
        assert limit < before
        assert advice.change(limit) == Change(keys, 1)
    assert advice.change(1e6) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"train.deterministic": True}, "train.optimizer: adamw_8bit"),
        ({"train.global_batch_size": 6}, "ray.num_workers: 4"),
        ({"train.strategy": "fsdp2"}, "adapter.base_dtype: bf16"),
        ({"train.strategy": "deepspeed"}, "adapter.quantize_base: 4bit"),
    ],
)
def test_only_changes_that_the_check_accepts_are_advised(
    values: dict[str, Any], refused: str, tmp_path: Path
) -> None:
    """For any size of memory: what is advised is applied to the config, which is checked."""
    written = {f"runs.base.{path}": value for path, value in values.items()}
    # Adapters don't train new tokens under FSDP2.
    written |= {"models.tiny": {"source": "path", "path": "m", "new_tokens": ["<a>"]}}
    experiment = experiment_with(written)
    accepts = accepted_by_check(experiment, "base")
    assert not accepts([refused])
    train = {path.removeprefix("train."): value for path, value in values.items()}
    setup = setup_of(tmp_path, **{"global_batch_size": 16, **train, "micro_batch_size": 1})
    advice = Advice(setup, accepts)
    whole, advised = advice.demand(setup).total(1), set()
    for share in (0.95, 0.8, 0.6, 0.4, 0.3, 0.2, 0.1):
        if change := advice.change(share * whole):
            advised.add(change.keys)
    assert advised
    for keys in advised:
        changed = dict(written)
        for key in keys:
            path, value = key.split(": ")
            changed[f"runs.base.{path}"] = yaml.safe_load(value)
        experiment_with(changed)


@needs("adamw_8bit")
def test_no_change_is_advised_whose_extra_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts = accepted_by_check(experiment_with({}), "base")
    assert accepts(["train.optimizer: adamw_8bit"])
    monkeypatch.setattr(extras, "_FOLDERS", tmp_path)
    assert not accepts(["train.optimizer: adamw_8bit"])
    assert accepts(["train.gradient_checkpointing: true"])


def test_what_is_offloaded_is_on_the_device_for_one_block_at_a_time(tmp_path: Path) -> None:
    rows, tokens, width, in_fp32 = 4, 512, 1024, 4
    kept, offloaded = (
        Demand(setup_of(tmp_path, gradient_checkpointing=kind, micro_batch_size=rows))
        for kind in (True, "offload")
    )
    # At the peak, one of two blocks is computed again.
    elsewhere = rows * tokens * width * in_fp32
    saved = kept.parts(rows)["saved activations"] - offloaded.parts(rows)["saved activations"]
    assert saved == pytest.approx(elsewhere, rel=0.01)


def test_an_adapter_comes_with_weights_in_fp32(tmp_path: Path) -> None:
    setup = setup_of(
        tmp_path,
        weights="bf16",
        gradient_checkpointing=True,
        micro_batch_size=1,
        global_batch_size=1,
    )
    advice = Advice(setup)
    lora = replace(setup.with_train(weights="fp32"), adapter=Adapter(base_dtype="bf16"))
    change = advice.change(advice.demand(lora).total(1))
    assert change is not None
    assert change.keys == ("train.weights: fp32", "adapter.base_dtype: bf16")


def test_a_smaller_micro_batch_comes_before_an_adapter(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, micro_batch_size=16, global_batch_size=16)
    advice = Advice(setup)
    limit = advice.demand(setup.with_train(gradient_checkpointing=True)).total(8)
    change = advice.change(limit)
    assert change is not None
    assert change.keys == ("train.gradient_checkpointing: true", "train.micro_batch_size: 8")


def test_the_largest_micro_batch_fits_and_one_more_row_does_not(tmp_path: Path) -> None:
    demand = Demand(setup_of(tmp_path))
    limit = 4e9
    largest = demand.largest(limit)
    assert demand.total(largest) <= limit < demand.total(largest + 1)


def test_fsdp2_shares_weights_and_state_and_gathers_a_part(tmp_path: Path) -> None:
    alone = Demand(setup_of(tmp_path, strategy="fsdp2", global_batch_size=16))
    eight = alone.under(replace(alone.setup, workers=8))
    one, shared = alone.parts(2), eight.parts(2)
    for part in ("weights", "optimizer state"):
        assert shared[part] == pytest.approx(one[part] / 8, rel=1e-6)
    assert shared["gradients"] == pytest.approx(4 * alone.whole / 8, rel=1e-6)
    assert shared["workspace"] >= 2 * 2 * SHAPE.vocab_size * SHAPE.hidden_size


@pytest.mark.long
@needs("quantized_base")
def test_fsdp2_shares_4_bit_weights_but_not_their_scales(tmp_path: Path) -> None:
    setup = replace(
        setup_of(tmp_path, strategy="fsdp2", global_batch_size=16),
        adapter=Adapter(base_dtype="bf16", quantize_base="4bit"),
    )
    alone = Demand(setup)
    one, shared = (
        alone.parts(2)["weights"],
        alone.under(replace(setup, workers=8)).parts(2)["weights"],
    )
    scales = scale_bytes(setup.adapter, alone._quantized)
    assert shared == pytest.approx((one - scales) / 8 + scales, rel=1e-6)
    whole = Demand(replace(setup, adapter=Adapter(base_dtype="bf16")))
    assert alone.parts(2)["workspace"] < whole.parts(2)["workspace"]
    tight = whole.setup.with_train(gradient_checkpointing="offload", micro_batch_size=1)
    change = Advice(tight).change(0.999 * Demand(tight).total(1))
    assert change is not None
    assert change.keys[0] == "adapter.quantize_base: 8bit"
