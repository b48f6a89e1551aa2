"""Keys of other trainers are answered with those of this one."""

import re

import pytest
from small_config import config_with, faults

from moray.config.load import load_experiment
from moray.config.schema.experiment import Experiment, Run
from moray.config.validation import models_in
from moray.errors import ConfigError
from moray.extras.importing.convert import TOOLS
from moray.extras.importing.peers import HERE, NOWHERE

# By how often public configs have them.
TRANSFORMERS = """
output_dir num_train_epochs per_device_train_batch_size per_device_eval_batch_size learning_rate
gradient_accumulation_steps warmup_steps warmup_ratio weight_decay logging_steps save_steps
eval_steps eval_strategy evaluation_strategy save_strategy save_total_limit
load_best_model_at_end metric_for_best_model fp16 bf16 report_to run_name optim lr_scheduler_type
gradient_checkpointing max_grad_norm seed deepspeed fsdp push_to_hub hub_model_id
remove_unused_columns group_by_length dataloader_num_workers ddp_timeout torch_compile tf32
"""
TRL = """
max_length max_seq_length packing dataset_text_field assistant_only_loss completion_only_loss
chat_template_path eos_token beta loss_type label_smoothing ref_model r lora_alpha lora_dropout
target_modules bias task_type modules_to_save use_rslora use_dora load_in_4bit load_in_8bit
attn_implementation model_name_or_path
"""
AXOLOTL = """
base_model sequence_len sample_packing pad_to_sequence_len micro_batch_size num_epochs optimizer
gradient_accumulation_steps lr_scheduler learning_rate warmup_steps lora_r lora_alpha lora_dropout
lora_target_modules lora_target_linear load_in_4bit load_in_8bit val_set_size chat_template bf16
flash_attention train_on_inputs wandb_project special_tokens tokens early_stopping_patience
cosine_min_lr_ratio output_dir
"""
LLAMA_FACTORY = """
model_name_or_path finetuning_type lora_rank lora_alpha lora_target lora_dropout template
cutoff_len val_size quantization_bit per_device_train_batch_size gradient_accumulation_steps
learning_rate num_train_epochs lr_scheduler_type warmup_ratio bf16 pure_bf16 pref_beta pref_loss
neat_packing mask_history default_system do_train overwrite_output_dir flash_attn report_to
"""
OFTEN = sorted({*TRANSFORMERS.split(), *TRL.split(), *AXOLOTL.split(), *LLAMA_FACTORY.split()})


def is_key(path: str) -> bool:
    """Whether there is a key of this path, from the top or below a run."""
    first, *rest = path.split(".")
    if first in ("datasets", "models"):
        models = [*models_in(Experiment.model_fields[first].annotation)]
        rest = rest[1:]
    elif first in Run.model_fields:
        models = [*models_in(Run.model_fields[first].annotation)]
    else:
        return False
    for part in rest:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if not fields:
            return False
        models = [model for field in fields for model in models_in(field.annotation)]
    return True


def place(text: str) -> str:
    return re.split("[:,]", text)[0]


def test_each_key_of_the_table_has_one_here() -> None:
    assert [text for text in HERE.values() if not is_key(place(text))] == []


@pytest.mark.parametrize("section", ["runs.tuned", "runs.tuned.train", "runs.tuned.adapter", ""])
def test_keys_that_others_have_are_answered(section: str) -> None:
    unanswered = []
    for key in OFTEN:
        try:
            load_experiment(config_with({f"{section}.{key}".removeprefix("."): {}}))
        except ConfigError as error:
            if "unknown key; expected one of" in str(error):
                unanswered.append(key)
    assert unanswered == []


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("runs.tuned.train.num_train_epochs", "did you mean num_epochs?"),
        ("runs.tuned.num_train_epochs", "did you mean train.num_epochs?"),
        ("num_train_epochs", "did you mean defaults.train.num_epochs?"),
        ("runs.tuned.adapter.r", "did you mean rank?"),
        ("defaults.train.fp16", "did you mean precision?"),
        ("defaults.train.lora_r", "did you mean adapter.rank?"),
        ("runs.tuned.val_set_size", "did you mean datasets.NAME.validation_share?"),
        ("defaults.train.warmup_steps", "did you mean warmup_ratio, a share of the steps?"),
        ("runs.tuned.fsdp", "did you mean train.strategy: fsdp2?"),
        ("defaults.train.output_dir", "remove it: results are in results/"),
        ("defaults.learning_rate", "did you mean train.learning_rate?"),
        ("runs.tuned.train.block_size", "did you mean data.block_size?"),
        ("runs.tuned.seed", "did you mean train.seed or generate.seed?"),
        ("datasets.modules.cutoff_len", "did you mean defaults.data.block_size, tokens in a row?"),
    ],
)
def test_a_key_is_answered_with_its_place_here(path: str, remedy: str) -> None:
    assert faults({path: 1}) == [f"{path}: unknown key; {remedy}"]


def test_no_key_is_in_both_tables() -> None:
    assert not HERE.keys() & NOWHERE.keys()


@pytest.mark.parametrize(("key", "section"), [("model", "models"), ("dataset", "datasets")])
def test_a_repository_is_answered_with_where_it_belongs(key: str, section: str) -> None:
    path = f"runs.tuned.{key}"
    assert faults({path: "owner/name"}) == [
        f"{path}: got 'owner/name', expected a name of letters, digits, - and _ or a mapping; add "
        f"it under {section} by a name of yours, and put that name here"
    ]


def agree(target: str, names: list[str]) -> bool:
    """Whether a key is one of these, or a section of them, or they are sections of it."""
    return any(
        name.rpartition(".")[2] == target.rpartition(".")[2]
        or f"{name}.".startswith(f"{target}.")
        or f"{target}.".startswith(f"{name}.")
        for name in names
    )


def test_the_tables_of_the_importers_say_the_same() -> None:
    said = [
        (key, [place(name) for name in re.findall("`([^`]+)`", rule.here)])
        for tool in TOOLS
        for rule in tool.RULES
        for key in rule.keys
        if key in HERE
    ]
    other = {key for key, names in said if names and not agree(place(HERE[key]), names)}
    # Its names are no templates, so the importer takes the tokenizer's own.
    assert other == {"template"}
