"""The counterparts of axolotl's keys."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from moray.extras.importing.axolotl_datasets import datasets
from moray.extras.importing.axolotl_templates import template
from moray.extras.importing.settings import (
    ADAMW,
    RUNNING,
    initial_weights,
    lora_plus,
    model,
    optimizer,
    push,
    schedule,
)
from moray.extras.importing.settings import steps as epochs_or_steps
from moray.extras.importing.table import (
    Draft,
    Rule,
    becomes,
    converts,
    differs,
    no_effect,
    refused,
)

NAME = "axolotl"
MARK = "base_model"
NESTED = ("fsdp_config", "special_tokens")

_TEXT_MODELS = re.compile(r"\w+For(CausalLM|ConditionalGeneration|ImageTextToText)")
_SAME_PLUGINS = ("cut_cross_entropy", "kernels", "liger", "swanlab", "expert_parallel")
# Linear layers of a language model inside one that also takes images.
_LAYERS = re.compile(
    r"model\\?\.language_model\\?\.layers\\?\.\[?\\d\]?\+\\?\."
    r"(?:\(_checkpoint_wrapped_module\\?\.\)\?)?\([\w|]+\)\\?\.\(([\w|]+)\)_proj"
)


_PEFT_LISTS = {
    "lora_modules_to_save": "modules_to_save",
    "lora_target_parameters": "target_parameters",
    "peft_layers_to_transform": "layers_to_transform",
    "peft_trainable_token_indices": "trainable_token_indices",
}


def _model(draft: Draft) -> None:
    model(draft, "base_model", "revision_of_model")
    if draft.get("reinit_weights"):
        draft.model["random_weights"] = True


def _rows(draft: Draft) -> None:
    length, packing = draft.number("sequence_len", 512), bool(draft.get("sample_packing"))
    is_dpo = draft.get("rl") is not None
    # Chosen and rejected answer have half a row each.
    draft.put("data.block_size", 2 * (length or 512) if is_dpo else length)
    if is_dpo:
        draft.different["sequence_len"] = "block_size is of a pair, so it has room for two answers"
    draft.put("data.packing", packing and not is_dpo)
    if draft.get("pretraining_dataset") and draft.config.get("sample_packing") is None:
        draft.put("data.packing", True)
    if draft.get("max_packed_sequence_len", length) != length:
        draft.refused["max_packed_sequence_len"] = "set sequence_len to it, and sample_packing"


def _batch(draft: Draft) -> None:
    micro = draft.number("micro_batch_size", 1) or 1
    whole = draft.number("batch_size")
    accumulated = draft.number("gradient_accumulation_steps")
    if accumulated is None:
        accumulated = max(1, int(whole // micro)) if whole else 1
    shared = 1
    for key in ("context_parallel_size", "tensor_parallel_size"):
        shared *= int(draft.config.get(key) or 1)
    draft.put("train.global_batch_size", int(micro * accumulated * max(1, draft.gpus // shared)))
    draft.put("train.micro_batch_size", micro)


def _tokens(draft: Draft) -> None:
    if end := draft.get("special_tokens.eos_token"):
        draft.model["eos_token"] = end
    new = draft.get("tokens", [])
    if isinstance(new, list):
        draft.model.update({"new_tokens": new} if new else {})
    # An earlier name of `special_tokens`.
    elif new.keys() <= {"bos_token", "eos_token", "pad_token", "unk_token"}:
        draft.model.update({"eos_token": new["eos_token"]} if "eos_token" in new else {})
        draft.different["tokens"] = "only the eos_token is taken"
    else:
        draft.refused["tokens"] = "expected a list"


def _adapter(draft: Draft) -> None:
    kind = draft.get("adapter")
    four, eight = bool(draft.get("load_in_4bit")), bool(draft.get("load_in_8bit"))
    rank, alpha = draft.number("lora_r", 8), draft.number("lora_alpha", 8)
    dropout, targets = draft.number("lora_dropout", 0.0), draft.get("lora_target_modules", [])
    is_linear = draft.get("lora_target_linear")
    extra = {name: draft.get(f"peft_{name}") for name in ("use_rslora", "use_dora")}
    if kind is None:
        for key in [key for key in draft.config if key.startswith("lora_") and draft.config[key]]:
            draft.same[key] = "there is no adapter"
        if four or eight:
            draft.refused["load_in_4bit" if four else "load_in_8bit"] = "needs an adapter"
        return
    if kind not in ("lora", "qlora"):
        draft.refused["adapter"] = f"{kind}: only lora and qlora"
        return
    section: dict[str, Any] = {
        "rank": rank,
        "alpha": alpha,
        "dropout": dropout,
        "base_dtype": "bf16",
    }
    section.update({name: True for name, value in extra.items() if value})
    section |= initial_weights(draft, "peft_init_lora_weights", draft.get("peft_init_lora_weights"))
    for key, name in _PEFT_LISTS.items():
        if value := draft.get(key):
            section[name] = value if isinstance(value, list) else [value]
    if four or kind == "qlora":
        section["quantize_base"] = "4bit"
    elif eight:
        section["quantize_base"] = "8bit"
    if is_linear or targets == "all-linear":
        targets = "all-linear"
    elif isinstance(targets, str):
        layers = _LAYERS.fullmatch(targets)
        # Otherwise an expression, as PEFT takes it.
        targets = [f"{name}_proj" for name in layers[1].split("|")] if layers else targets
    draft.put("adapter", {**section, "target_modules": targets or "all-linear"})


def _precision(draft: Draft) -> None:
    bf16, plain = draft.get("bf16", "auto"), draft.get("bfloat16")
    half = next((key for key in ("fp16", "float16") if draft.get(key)), None)
    on = bf16 not in (False, "false") or bool(plain)
    if half:
        draft.different[half] = "bf16 instead of fp16"
    with_adapter = "adapter" in draft.run
    draft.put("train.precision", "bf16" if bf16 is True or plain else "auto")
    if not (on or half):
        draft.put("train.precision", "fp32")
        if with_adapter:
            draft.run["adapter"]["base_dtype"] = "fp32"
    elif not with_adapter:
        draft.different["bf16" if on else str(half)] = (
            "trained weights are kept in fp32, which axolotl loads in 16 bits; "
            "train.weights: bf16 takes half the memory"
        )


def _checkpointing(draft: Draft) -> None:
    value = draft.get("gradient_checkpointing", False)
    offloads = value in ("offload", "offload_disk") or draft.get("activation_offloading")
    draft.put("train.gradient_checkpointing", "offload" if offloads else bool(value))


def _order(draft: Draft) -> None:
    if draft.get("shuffle_merged_datasets") is False:
        draft.different["shuffle_merged_datasets"] = "rows have a random order"


def _unfrozen(draft: Draft) -> None:
    names = [re.sub(r"[\^.*$]", "", name) for name in draft.get("unfrozen_parameters", [])]
    if {*names} - {"modellanguage_model", "lm_head"}:
        draft.refused["unfrozen_parameters"] = "all weights are trained, or an adapter"
    elif names:
        draft.same["unfrozen_parameters"] = "of other parts, text trains nothing"


def _plugins(draft: Draft) -> None:
    for name in draft.get("plugins", []):
        if not any(f".{plugin}." in name for plugin in _SAME_PLUGINS):
            draft.refused["plugins"] = name
        else:
            draft.same["plugins"] = "kernels, which are chosen here, and logging"


def _kind(draft: Draft) -> None:
    kind = draft.get("model_type", "AutoModelForCausalLM")
    if not _TEXT_MODELS.fullmatch(kind):
        draft.refused["model_type"] = f"{kind}: only causal language models"
    match draft.get("rl"):
        case None:
            pass
        case "dpo" | "ipo" as loss:
            draft.put("preference.loss", loss)
            draft.put("preference.beta", draft.number("rl_beta", 0.1))
        case other:
            draft.refused["rl"] = f"{other}: only dpo and ipo"


def _extras(draft: Draft) -> None:
    config = dict(draft.get("model_config", {}))
    coefficient = config.pop("router_aux_loss_coef", None)
    if config.pop("output_router_logits", False):
        draft.put("train.router_aux_loss", True if coefficient is None else float(coefficient))
    for key in config:
        draft.refused["model_config"] = f"{key}: the model's config is that of its files"
    kwargs: Mapping[str, Any] = draft.get("model_quantization_config_kwargs", {})
    if draft.get("model_quantization_config") and not kwargs.get("dequantize"):
        draft.refused["model_quantization_config"] = "a base is trained dequantized"
    for key, value in dict(draft.get("bnb_config_kwargs", {})).items():
        if (key, value) != ("bnb_4bit_use_double_quant", True):
            draft.refused["bnb_config_kwargs"] = f"{key}: 4 bits are NF4, quantized twice"


RULES: Sequence[Rule] = (
    converts(
        "base_model revision_of_model reinit_weights",
        "`models.NAME`, `random_weights`",
        _model,
    ),
    converts(
        "model_type rl rl_beta", "a language model; `dpo`, `ipo` → `preference.loss`, `beta`", _kind
    ),
    converts(
        "datasets pretraining_dataset val_set_size train_on_inputs excess_length_strategy",
        "`datasets.NAME`, `validation_share`, `data.long_documents`",
        datasets,
    ),
    converts(
        "sequence_len sample_packing max_packed_sequence_len",
        "`data.block_size` (for pairs, twice as many tokens), `data.packing`",
        _rows,
    ),
    converts(
        "chat_template chat_template_jinja",
        "`data.chat_template`, with the text of a template whose path is given",
        template,
    ),
    converts("special_tokens.eos_token tokens", "`models.NAME.eos_token`, `new_tokens`", _tokens),
    converts(
        "micro_batch_size gradient_accumulation_steps batch_size",
        "`train.global_batch_size`: their product, times the GPUs; `train.micro_batch_size`",
        _batch,
    ),
    converts(
        "num_epochs max_steps",
        "`train.num_epochs`, `train.max_steps`",
        lambda draft: epochs_or_steps(draft, "num_epochs", 1.0),
    ),
    becomes("learning_rate", "train.learning_rate"),
    converts(
        "lr_scheduler warmup_ratio warmup_steps",
        "`train.lr_scheduler_type`, `train.warmup_ratio`, `train.min_lr_ratio`",
        lambda draft: schedule(draft, "lr_scheduler", "cosine", 0.03, at_most=100),
    ),
    becomes("cosine_min_lr_ratio", "train.min_lr_ratio"),
    *ADAMW,
    converts(
        "optimizer",
        "`train.optimizer`: AdamW in all its forms, `adamw` or `adamw_8bit`; others are refused",
        lambda draft: optimizer(draft, "optimizer", "adamw_torch_fused"),
    ),
    converts(
        "adapter load_in_4bit load_in_8bit lora_r lora_alpha lora_dropout lora_target_modules "
        "lora_target_linear lora_modules_to_save lora_target_parameters peft_use_dora "
        "peft_use_rslora peft_init_lora_weights peft_layers_to_transform "
        "peft_trainable_token_indices",
        "`adapter.rank`, `alpha`, `dropout`, `target_modules`, `use_dora`, `use_rslora`, "
        "`modules_to_save`, `target_parameters`, `init_lora_weights`, `layers_to_transform`, "
        "`trainable_token_indices`, "
        "`quantize_base: 4bit` or `8bit`",
        _adapter,
    ),
    converts("bf16 bfloat16 fp16 float16", "`train.precision`; fp16 becomes bf16", _precision),
    converts(
        "gradient_checkpointing activation_offloading",
        "`train.gradient_checkpointing`",
        _checkpointing,
    ),
    *RUNNING,
    becomes("early_stopping_patience", "train.early_stopping_patience"),
    becomes("load_best_model_at_end", "train.load_best_model_at_end", read=bool),
    converts("unfrozen_parameters", "all of a language model; others are refused", _unfrozen),
    converts("plugins", "kernels and logging have no effect; others are refused", _plugins),
    converts(
        "model_config model_quantization_config model_quantization_config_kwargs bnb_config_kwargs",
        "what is done here in any case; the rest is refused",
        _extras,
    ),
    no_effect(
        "fsdp_config.*auto_wrap_policy fsdp_config.*transformer_layer_cls_to_wrap fsdp_version "
        "fsdp_config.*version fsdp_config.*state_dict_type fsdp_config.*limit_all_gathers "
        "fsdp_config.*sync_module_states fsdp_config.*use_orig_params fsdp_config.*_prefetch "
        "fsdp_config.*cpu_ram_efficient_loading ddp ddp_* dp_shard_size dp_replicate_size "
        "device_map local_rank low_cpu_mem_usage experimental_skip_move_to_device "
        "accelerator_config base_model_ignore_patterns",
        "FSDP2 wraps each block; how weights are loaded and spread doesn't change the result",
    ),
    no_effect(
        "attn_implementation *flash_attn* flash_attention flash_optimum xformers_attention "
        "sdp_attention flex_* fused_attn_kernel *_hybrid_attn_impl liger_* lora_*_kernel "
        "cut_cross_entropy use_kernels use_scattermoe use_sonicmoe experts_implementation "
        "torch_compile* tf32 gradient_checkpointing_kwargs fsdp_kwargs tiled_mlp "
        "llama4_linearized_experts",
        "kernels and precision of matrix products are chosen here; see train.attention, compile",
    ),
    no_effect(
        "swanlab_* use_swanlab trackio_* comet_* debug strict "
        "eval_table_size eval_max_new_tokens eval_causal_lm_metrics do_causal_lm_eval "
        "loss_watchdog_*",
        "logging; see tracking and evaluate",
    ),
    no_effect(
        "output_dir dataset_prepared_path evals_per_epoch saves_per_epoch save_strategy "
        "save_safetensors save_only_model auto_resume_from_checkpoints "
        "push_dataset_to_hub streaming streaming_multipack_buffer_size eval_batch_size "
        "eval_sample_packing pad_to_sequence_len",
        "results/ and its checkpoints; see train.save_steps, eval_steps, push",
    ),
    no_effect(
        "tokenizer_type trust_remote_code remove_unused_columns lora_fan_in_fan_out "
        "special_tokens.pad_token special_tokens.unk_token resize_token_embeddings_to_32x",
        "tokenizers and models are those that Transformers has",
    ),
    converts("shuffle_merged_datasets", "rows are always shuffled", _order),
    differs("tokenizer_use_mistral_common", "the tokenizer is the one that Transformers has"),
    converts("hub_model_id", "`push.repo`", lambda draft: push(draft, "hub_model_id")),
    no_effect("eot_tokens", "the end of a turn is trained as the chat template writes it"),
    differs("special_tokens.bos_token", "the tokenizer's own is kept; see data.bos"),
    differs("group_by_length", "rows have a random order"),
    no_effect("quantize_moe_experts", "experts are quantized with the layers, in 4 bits"),
    differs("adam_epsilon", "AdamW's epsilon is 1e-8"),
    refused(
        "processor_type skip_prepare_dataset freeze_mm_modules image_*",
        "images and sound aren't trained with text",
    ),
    refused(
        "reward_model process_reward_model num_labels trl vllm ebft gdpo",
        "reward models and reinforcement learning aren't there",
    ),
    refused("gptq* qat fp8* dsv4_* use_dsv4_kernels use_onebitllms", "no such quantization"),
    no_effect(
        "context_parallel_size tensor_parallel_size expert_parallel_size",
        "sequences and layers aren't split over GPUs; see what fits with `moray plan`",
        off=(1,),
    ),
    refused("relora* jagged_restart_*", "adapters aren't merged and restarted"),
    lora_plus(),
    no_effect("loraplus_lr_embedding", "embeddings have no adapters"),
    refused("lora_model_dir", "export that run merged, and start from it"),
    refused("resume_from_checkpoint", "checkpoints of other tools aren't read"),
    refused(
        "min_sample_len tokenizer_config torch_dtype torchdistx_path cosine_constant_lr_ratio",
        "no counterpart",
    ),
)
