"""Configs of axolotl and LLaMA-Factory as overlays."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from extras.importing.foreign_configs import AXOLOTL, LLAMA_FACTORY, at, imported, refusals, written
from hub_server import Hub, Repository, hub_server
from in_one_process import make_all
from project import ROOT, Project
from typer.testing import CliRunner

from moray.cli import app
from moray.config.load import load_experiment, merge
from moray.errors import ConfigError, UserError
from moray.extras.importing.convert import convert, page

LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_modules": ["q_proj"]}


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ({}, "train.learning_rate", 2e-5),
        ({}, "train.num_epochs", 3),
        ({}, "train.global_batch_size", 8),
        # axolotl's documentation: batch_size / micro_batch_size / number of GPUs.
        (
            {"batch_size": 16, "gradient_accumulation_steps": None},
            "train.global_batch_size",
            16,
        ),
        ({}, "data.block_size", 512),
        ({}, "data.packing", True),
        # axolotl drops what is longer than a row.
        ({}, "data.long_documents", "drop"),
        # Defaults of Transformers and axolotl that aren't those here.
        ({}, "train.adam_beta2", 0.999),
        ({}, "train.weight_decay", 0),
        ({}, "train.min_lr_ratio", 0),
        ({}, "train.lr_scheduler_type", "cosine"),
        ({}, "train.seed", 42),
        ({"max_steps": 100, "warmup_steps": 10}, "train.warmup_ratio", 0.1),
        ({"max_steps": 200, "eval_steps": 0.05}, "train.eval_steps", 10),
        ({"sample_packing": None, "max_packed_sequence_len": 512}, "data.packing", True),
        ({"warmup_steps": 0}, "train.warmup_ratio", 0),
        ({"warmup_ratio": 0}, "train.warmup_ratio", 0),
        # As Transformers reads both.
        ({"warmup_steps": 0, "warmup_ratio": 0.2}, "train.warmup_ratio", 0.2),
        ({"max_steps": 10, "warmup_steps": 1, "warmup_ratio": 0.2}, "train.warmup_ratio", 0.1),
        # Without either key, 3 % of the steps, but at most 100.
        ({}, "train.warmup_ratio", 0.03),
        ({"max_steps": 10000}, "train.warmup_ratio", 0.01),
        ({"lr_scheduler": "constant", "warmup_ratio": 0.1}, "train.warmup_ratio", 0),
        ({"lr_scheduler": "constant_with_warmup", "warmup_ratio": 0.1}, "train.warmup_ratio", 0.1),
        ({"optimizer": "paged_adamw_32bit"}, "train.optimizer", "adamw"),
        ({"optimizer": "adamw_bnb_8bit"}, "train.optimizer", "adamw_8bit"),
        ({"optimizer": "muon"}, "train.optimizer", "muon"),
        ({"cosine_min_lr_ratio": 0.1}, "train.min_lr_ratio", 0.1),
        # Only axolotl's cosine schedule has it.
        ({"cosine_min_lr_ratio": 0.1, "lr_scheduler": "linear"}, "train.min_lr_ratio", 0),
        (
            {
                "lr_scheduler": "cosine_with_min_lr",
                "lr_scheduler_kwargs": {"min_lr": 2e-6},
            },
            "train.min_lr_ratio",
            0.1,
        ),
        ({"use_ray": True, "ray_num_workers": 4}, "train.global_batch_size", 32),
        ({"use_ray": False, "ray_num_workers": 4}, "train.global_batch_size", 8),
        ({"bf16": False}, "train.precision", "fp32"),
        ({"bf16": "auto"}, "train.precision", "auto"),
        ({"fp16": True, "float16": True}, "train.precision", "auto"),
        ({"bf16": False, "float32": True}, "train.precision", "fp32"),
        ({"gradient_checkpointing": True}, "train.gradient_checkpointing", True),
        ({"activation_offloading": True}, "train.gradient_checkpointing", "offload"),
        (LORA, "adapter.rank", 4),
        (LORA, "adapter.alpha", 8),
        (LORA, "adapter.target_modules", ["q_proj"]),
        (LORA, "adapter.base_dtype", "bf16"),
        (LORA | {"lora_target_linear": True}, "adapter.target_modules", "all-linear"),
        (
            LORA | {"lora_target_modules": r"language_model.model.layers.[\d]+.(mlp).(up|q)_proj"},
            "adapter.target_modules",
            ["up_proj", "q_proj"],
        ),
        (LORA | {"adapter": "qlora", "load_in_4bit": True}, "adapter.quantize_base", "4bit"),
        (LORA | {"load_in_8bit": True}, "adapter.quantize_base", "8bit"),
        (LORA | {"bf16": False}, "adapter.base_dtype", "fp32"),
        (LORA | {"bf16": False}, "train.precision", "fp32"),
        (LORA | {"bf16": False, "fp16": True}, "train.precision", "auto"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            "data.template_variables",
            {"enable_thinking": False},
        ),
        ({"wandb_project": "mine"}, "tracking", ["wandb"]),
        ({"use_tensorboard": True}, "tracking", ["tensorboard"]),
        ({"mlflow_tracking_uri": "http://localhost"}, "tracking", ["mlflow"]),
        ({"hub_model_id": "me/mine"}, "push.repo", "me/mine"),
        ({"fsdp_config": {"fsdp_offload_params": True}}, "train.fsdp2.cpu_offload", True),
        ({"fsdp": ["full_shard", "offload"]}, "train.fsdp2.cpu_offload", True),
        ({"deepspeed": "deepspeed_configs/zero2.json"}, "train.deepspeed.zero_stage", 2),
        (
            {"deepspeed": {"zero_optimization": {"stage": 3}}},
            "train.deepspeed.zero_stage",
            3,
        ),
        (
            {"deepspeed": "a/zero3_bf16_cpuoffload_all.json", "optimizer": "adamw_bnb_8bit"},
            "train.strategy",
            "fsdp2",
        ),
    ],
)
def test_a_key_of_axolotl_becomes_what_it_means(given: Any, path: str, value: Any) -> None:
    assert at(imported(AXOLOTL | given), path) == value


def test_batches_are_multiplied_by_the_gpus() -> None:
    assert at(imported(AXOLOTL, gpus=8), "train.global_batch_size") == 64
    assert at(imported(LLAMA_FACTORY, gpus=8), "train.global_batch_size") == 64


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ({}, "train.learning_rate", 5e-5),
        ({}, "train.num_epochs", 3),
        ({}, "train.lr_scheduler_type", "linear"),
        ({}, "train.gradient_checkpointing", True),
        ({}, "data.long_documents", "truncate"),
        # LoRA with twice the rank as alpha is the default.
        ({"lora_rank": 4}, "adapter.alpha", 8),
        ({"lora_target": "q_proj, v_proj"}, "adapter.target_modules", ["q_proj", "v_proj"]),
        ({"quantization_bit": 4}, "adapter.quantize_base", "4bit"),
        ({"quantization_bit": 8}, "adapter.quantize_base", "8bit"),
        ({"finetuning_type": "full", "pure_bf16": True}, "train.weights", "bf16"),
        ({"stage": "pt"}, "data.packing", True),
        ({"stage": "dpo", "pref_beta": 0.3}, "preference.beta", 0.3),
        ({"stage": "dpo"}, "data.block_size", 1024),
        ({"ray_num_workers": 4}, "train.global_batch_size", 32),
        ({"early_stopping_steps": 3, "val_size": 0.1}, "train.early_stopping_patience", 3),
        ({"report_to": "wandb"}, "tracking", ["wandb"]),
        ({"report_to": ["tensorboard", "swanlab"]}, "tracking", ["tensorboard"]),
        ({"hub_model_id": "me/mine"}, "push.repo", "me/mine"),
        ({"deepspeed": "ds_z3_config.json"}, "train.deepspeed.zero_stage", 3),
        (
            {"enable_thinking": False, "template": "qwen3"},
            "data.template_variables",
            {"enable_thinking": False},
        ),
    ],
)
def test_a_key_of_llama_factory_becomes_what_it_means(given: Any, path: str, value: Any) -> None:
    assert at(imported(LLAMA_FACTORY | given), path) == value


def test_weights_that_axolotl_draws_again_are_random_here() -> None:
    assert imported(AXOLOTL | {"reinit_weights": True})["models"]["theirs-base"]["random_weights"]


def test_new_tokens_and_random_weights() -> None:
    given: dict[str, Any] = {
        "special_tokens": {"additional_special_tokens": ["<a>"]},
        "tokens": ["<b>", "<a>"],
    }
    assert imported(AXOLOTL | given)["models"]["theirs-base"]["new_tokens"] == ["<b>", "<a>"]
    given = {"add_special_tokens": "<a>,<b>", "train_from_scratch": True}
    made = imported(LLAMA_FACTORY | given)["models"]["theirs-base"]
    assert (made["new_tokens"], made["random_weights"]) == (["<a>", "<b>"], True)


def test_fields_of_peft_are_imported() -> None:
    theirs = {
        "lora_modules_to_save": ["embed_tokens", "lm_head"],
        "lora_target_parameters": ["mlp.experts.down_proj"],
        "peft_layers_to_transform": [0, 1],
        "peft_init_lora_weights": "gaussian",
        "peft_trainable_token_indices": [3],
        "loraplus_lr_ratio": 16,
    }
    made = imported(AXOLOTL | LORA | theirs)
    found = at(made, "adapter")
    assert found["modules_to_save"] == ["embed_tokens", "lm_head"]
    assert found["target_parameters"] == ["mlp.experts.down_proj"]
    assert (found["layers_to_transform"], found["trainable_token_indices"]) == ([0, 1], [3])
    assert (found["init_lora_weights"], at(made, "train.loraplus_lr_ratio")) == ("gaussian", 16)
    expression = r".*\.(q|v)_proj"
    made = imported(AXOLOTL | LORA | {"lora_target_modules": expression})
    assert at(made, "adapter.target_modules") == expression
    made = imported(LLAMA_FACTORY | {"pissa_init": True, "additional_target": "lm_head"})
    assert at(made, "adapter.init_lora_weights") == "pissa_niter_16"
    assert at(made, "adapter.modules_to_save") == ["lm_head"]
    loftq = AXOLOTL | LORA | {"peft_init_lora_weights": "loftq"}
    assert "peft_init_lora_weights (loftq: only gaussian" in refusals(loftq)


def test_an_adapter_that_is_trained_further_is_that_of_the_base_model() -> None:
    def made(given: dict[str, Any]) -> tuple[Any, Any]:
        overlay = imported(given)
        goes_on = not at(overlay, "adapter").get("create_new_adapter", True)
        return overlay["models"]["theirs-base"].get("adapter"), goes_on

    assert made(AXOLOTL | LORA | {"lora_model_dir": None}) == (None, False)
    assert made(AXOLOTL | LORA | {"lora_model_dir": "./before"}) == ("before", True)
    named = LLAMA_FACTORY | {"adapter_name_or_path": "saves/sft"}
    assert made(named) == ("saves/sft", True)
    assert made(named | {"create_new_adapter": True}) == ("saves/sft", False)
    two = LLAMA_FACTORY | {"adapter_name_or_path": "saves/sft,saves/dpo"}
    assert "adapter_name_or_path (several adapters: merge" in refusals(two)


def test_the_load_balancing_loss_is_imported_with_its_coefficient() -> None:
    def run_of(given: dict[str, Any]) -> Any:
        return at(imported(given), "train").get("router_aux_loss")

    assert run_of(LLAMA_FACTORY | {"moe_aux_loss_coef": 0.001}) == 0.001
    on = {"output_router_logits": True}
    assert run_of(AXOLOTL | {"model_config": on}) is True
    assert run_of(AXOLOTL | {"model_config": on | {"router_aux_loss_coef": 0.02}}) == 0.02
    assert run_of(AXOLOTL | {"model_config": {"router_aux_loss_coef": 0.02}}) is None


def test_a_damaged_description_of_datasets_is_named() -> None:
    Path("data").mkdir()
    for content in ("[]", "{"):
        Path("data/dataset_info.json").write_text(content)
        line = refusals(LLAMA_FACTORY)
        assert line.startswith("data/dataset_info.json: damaged: isn't ")
        assert line.endswith("; correct it")


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("max_grad_norm", 0, "train.max_grad_norm"),
        ("warmup_ratio", 1, "train.warmup_ratio"),
        ("num_epochs", 0, "train.num_epochs"),
        ("learning_rate", 0, "train.learning_rate"),
        ("seed", 2**64, "train.seed"),
        ("sequence_len", 4, "data.block_size"),
        ("excess_length_strategy", "raise", "data.long_documents"),
        ("early_stopping_patience", -1, "train.early_stopping_patience"),
        ("hub_model_id", "mine", "push.repo"),
    ],
)
def test_a_key_that_the_check_refuses_is_refused_by_name(key: str, value: Any, path: str) -> None:
    line = refusals(AXOLOTL | {key: value})
    assert re.search(rf"\b{key}\b[^(]*\(runs.theirs.{path}: got {value!r}, expected ", line), line


@pytest.mark.parametrize(
    "config", [AXOLOTL | {"lr_scheduler": "constant_with_warmup"}, AXOLOTL, LLAMA_FACTORY]
)
def test_a_warm_up_longer_than_the_run_is_refused(config: dict[str, Any]) -> None:
    line = refusals(config | {"max_steps": 50, "warmup_steps": 100})
    assert (
        "warmup_steps (100 steps in a run of 50, which would end before its peak learning rate)"
    ) in line


def test_the_best_step_needs_rows_for_validation() -> None:
    line = refusals(AXOLOTL | {"load_best_model_at_end": True, "val_set_size": 0})
    assert "val_set_size (datasets.theirs-1.validation_share: got 0, but run theirs needs" in line


def test_the_revision_of_a_repository_has_to_be_filled_in() -> None:
    overlay = yaml.safe_load(convert(written(AXOLOTL)))
    with pytest.raises(ConfigError) as caught:
        load_experiment(overlay)
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "datasets.theirs-1.revision",
        "models.theirs-base.revision",
    ]


def test_repositories_are_pinned_to_their_newest_commits(tmp_path: Path) -> None:
    """One that the Hub doesn't have stays open, with those behind it."""
    repositories = {
        (kind, "owner/" + kind): Repository({"README.md": b""}, commit=digit * 40)
        for kind, digit in (("models", "1"), ("datasets", "2"))
    }
    paths = ("owner/datasets", "owner/other")
    entries = [{"path": path, "type": "completion"} for path in paths]
    file = written(AXOLOTL | {"base_model": "owner/models", "datasets": entries})
    environment = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    with hub_server(Hub(repositories)) as hub:
        done = subprocess.run(
            ["moray", "import", str(file)],
            env=os.environ | environment | {"HF_ENDPOINT": hub.endpoint},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    overlay = yaml.safe_load(done.stdout)
    assert overlay["models"]["theirs-base"]["revision"] == "1" * 40
    revisions = [section["revision"] for section in overlay["datasets"].values()]
    assert revisions == ["2" * 40, "FILL-IN"]


def test_comments_say_what_has_no_effect_and_what_differs() -> None:
    given = {"trackio_run_name": "mine", "load_in_8bit": True, "tf32": False, "warmup_steps": 5}
    head = convert(written(AXOLOTL | LORA | given)).partition("datasets:")[0]
    different, same = head.split("# No effect:")
    assert "load_in_8bit" not in head
    assert "warmup_steps: set train.warmup_ratio" in different
    assert "trackio_run_name: logging" in same
    assert "Off there: tf32." in same


def test_all_that_has_no_counterpart_is_named_in_one_line() -> None:
    given = {
        "optimizer": "lion_pytorch",
        "relora": True,
        "flux": 1,
        "datasets": [{"path": "owner/rows", "type": "alpaca", "drop": 1}],
    }
    line = refusals(AXOLOTL | given)
    for key in ("optimizer (lion_pytorch:", "relora (", "flux (unknown key)", "datasets.0.drop ("):
        assert key in line
    assert "base_model (weights" in refusals(AXOLOTL | {"base_model": "owner/model-GPTQ"})
    assert "image_max_pixels (" in refusals(LLAMA_FACTORY | {"image_max_pixels": 4})


def test_a_config_of_neither_tool_is_refused() -> None:
    assert "the tool isn't known" in refusals({"model": "a"})


def test_the_page_has_the_tables() -> None:
    text = (ROOT / "docs/import.md").read_text()
    assert page(text) == text
    assert "| `weight_decay` | `train.weight_decay` |" in text


def test_the_command_prints_the_overlay() -> None:
    done = CliRunner().invoke(app, ["import", str(written(AXOLOTL)), "--num-gpus", "2"])
    assert done.exit_code == 0
    assert at(yaml.safe_load(done.stdout), "train.global_batch_size") == 16
    done = CliRunner().invoke(app, ["import", "nowhere.yaml"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: nowhere.yaml: there is no such file")


@pytest.mark.long
def test_an_overlay_trains(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = Project.create(tmp_path / "project")
    shutil.copytree(model_folder, project.folder / "data/model")
    rows = [{"text": f"The number {n} follows the number {n - 1}."} for n in range(60)]
    (project.folder / "data/rows.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    entry = {"path": "./data/rows.jsonl", "type": "completion"}
    model = {"base_model": "./data/model", "sequence_len": 128, "max_steps": 2, "bf16": False}
    overlay = yaml.safe_load(convert(written(AXOLOTL | LORA | model | {"datasets": [entry]})))
    overlay["runs"]["theirs"]["train"]["launcher"] = "torchrun"
    whole = merge(yaml.safe_load(project.config.read_text()), overlay)
    make_all(project.folder, whole | {"runs": overlay["runs"]})
    history = (project.folder / "results/runs/theirs/history.jsonl").read_text()
    assert '"step": 2' in history


def test_a_config_of_another_tool_is_not_evaluated(tmp_path: Path) -> None:
    """Snakemake's config files can be."""
    made = tmp_path / "made"
    definitions = {"__use_yte__": True, "__definitions__": [f"open({str(made)!r}, 'w')"]}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(definitions | AXOLOTL))
    with pytest.raises((ConfigError, UserError), match="__use_yte__"):
        convert(tmp_path / "theirs.yaml")
    assert not made.exists()
