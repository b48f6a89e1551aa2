"""What is said of keys that have no counterpart of another name."""

import dataclasses
from collections import Counter
from typing import Any

import pytest
from extras.importing.foreign_configs import AXOLOTL, LLAMA_FACTORY, refusals, written
from transformers import TrainingArguments

from moray.extras.importing.convert import TOOLS, convert
from moray.extras.importing.table import Draft, apply, flatten


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (AXOLOTL, {"shuffle_merged_datasets": False}),
        (AXOLOTL, {"tokenizer_use_mistral_common": True}),
        (LLAMA_FACTORY, {"upcast_layernorm": True}),
        (AXOLOTL, {"pretrain_multipack_attn": False}),
        (AXOLOTL, {"peft_autocast_adapter_dtype": False}),
        (AXOLOTL, {"neftune_noise_alpha": 5}),
        (AXOLOTL, {"sample_packing_sequentially": True}),
        (LLAMA_FACTORY, {"disable_shuffling": True}),
        (LLAMA_FACTORY, {"average_tokens_across_devices": False}),
        (AXOLOTL | {"sample_packing": None}, {"max_packed_sequence_len": 512}),
    ],
)
def test_order_tokens_and_precision_are_never_without_effect(config: Any, given: Any) -> None:
    head = convert(written(config | given)).partition("# No effect:")[0]
    assert f"# - {next(iter(given))}: " in head
    assert "max_packed_sequence_len (" in refusals(AXOLOTL | {"max_packed_sequence_len": 64})


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (AXOLOTL, {"adam_epsilon": "1e-8", "tiled_mlp_use_original_mlp": True}),
        (AXOLOTL, {"eaft_alpha": 1.0, "relora_prune_ratio": 0.9}),
        (LLAMA_FACTORY, {"adam_epsilon": 1e-8, "image_max_pixels": 768 * 768}),
        (LLAMA_FACTORY, {"use_galore": False, "galore_rank": 16, "galore_scale": 2.0}),
    ],
)
def test_a_default_that_is_written_out_and_a_setting_of_what_is_off_are_nothing(
    config: Any, given: Any
) -> None:
    said = " ".join(convert(written(config | given)).replace("\n#", "").split())
    off = said.partition("Off there: ")[2].partition(".")[0]
    assert {*given} <= {*off.split(", ")}


@pytest.mark.parametrize(
    ("config", "given", "refusal"),
    [
        (AXOLOTL, {"liger_use_token_scaling": True}, "liger_use_token_scaling (no such loss)"),
        (AXOLOTL, {"base_model_config": "owner/other"}, "base_model_config ("),
        (AXOLOTL, {"dataset_shard_num": 10}, "dataset_shard_num (a part of the rows"),
        (AXOLOTL, {"optim_args": "beta2=0.9"}, "optim_args ("),
        (AXOLOTL, {"relora": True, "relora_prune_ratio": 0.9}, "relora ("),
        (LLAMA_FACTORY, {"deepspeed": "ds_z3_fp8_config.json"}, "deepspeed (no such quantization"),
        (LLAMA_FACTORY, {"label_smoothing_factor": 0.1}, "label_smoothing_factor (no such loss)"),
        (LLAMA_FACTORY, {"rope_scaling": "yarn"}, "rope_scaling ("),
        (LLAMA_FACTORY, {"stage": "dpo", "ref_model": "owner/other"}, "ref_model ("),
        (LLAMA_FACTORY, {"use_galore": True, "galore_rank": 16}, "use_galore ("),
        (LLAMA_FACTORY, {"do_predict": True}, "do_predict (nothing is trained"),
        (LLAMA_FACTORY, {"do_train": False}, "do_train (nothing is trained"),
        (LLAMA_FACTORY, {"fsdp_config": "fsdp.json"}, "fsdp_config (a file"),
    ],
)
def test_what_changes_losses_rows_or_weights_is_refused(
    config: Any, given: Any, refusal: str
) -> None:
    line = refusals(config | given)
    assert refusal in line
    assert line.count("galore") + line.count("relora") <= 1


@pytest.mark.parametrize(
    ("config", "key", "near"),
    [
        (AXOLOTL, "adam_eps", "adam_epsilon"),
        (AXOLOTL, "context_parapllel_size", "context_parallel_size"),
        (AXOLOTL, "num_generations", "trl.num_generations"),
        (LLAMA_FACTORY, "learning_rte", "learning_rate"),
        (LLAMA_FACTORY, "flux", None),
        (LLAMA_FACTORY, "global_batch_size", None),
    ],
)
def test_a_key_that_the_other_tool_does_not_have_is_answered_with_the_nearest(
    config: Any, key: str, near: str | None
) -> None:
    answer = f"unknown key; did you mean {near}?" if near else "unknown key"
    assert f"{key} ({answer})" in refusals(config | {key: 1})
    entry = {"path": "owner/rows", "type": "completion", "feild": "body"}
    line = refusals(AXOLOTL | {"datasets": [entry]})
    assert "datasets.0.feild (unknown key; did you mean field?)" in line


def test_each_argument_of_transformers_trainer_is_a_key_of_llama_factory() -> None:
    names = [field.name for field in dataclasses.fields(TrainingArguments)]
    draft = Draft("theirs", dict.fromkeys(names, 1) | {"model_name_or_path": "owner/model"})
    apply(TOOLS[1].RULES, draft)
    unknown = [key for key, why in draft.refused.items() if why.startswith("unknown key")]
    assert unknown == []


def test_a_key_has_one_row() -> None:
    """Behind another rule for the same key, a rule is never applied."""
    for tool in TOOLS:
        names = [name for rule in tool.RULES for name in rule.keys]
        assert [name for name, number in Counter(names).items() if number > 1] == []


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.NAME)
def test_no_key_is_dropped(tool: Any) -> None:
    """Whatever the value of whatever key: it is converted, or something is said of it."""
    keys = [name.replace("*", "x") for rule in tool.RULES for name in rule.keys]
    for value in (True, False, None, 1, 0.5, "text", ["text"]):
        for key in (*keys, "unknown"):
            draft = Draft("theirs", flatten({tool.MARK: "owner/model", key: value}, tool.NESTED))
            apply(tool.RULES, draft)
            said = draft.read | {*draft.same, *draft.different, *draft.refused, *draft.off}
            assert draft.config.keys() <= said, key
