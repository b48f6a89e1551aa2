"""The counterparts of axolotl's keys."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from moray.extras.importing.adapters import earlier_adapter, initial_weights
from moray.extras.importing.axolotl_datasets import DATASET, datasets
from moray.extras.importing.axolotl_notes import NOTES
from moray.extras.importing.axolotl_templates import template, variables
from moray.extras.importing.settings import (
    ADAMW,
    RUNNING,
    lora_plus,
    model,
    optimizer,
    push,
    ray_workers,
    schedule,
)
from moray.extras.importing.settings import steps as epochs_or_steps
from moray.extras.importing.table import Draft, Rule, becomes, converts

NAME = "axolotl"
MARK = "base_model"
NESTED = (
    *("fsdp_config", "special_tokens", "trl"),
    *("dynamic_checkpoint", "selective_checkpointing"),
)

_CLASSIFIER = "AutoModelForSequenceClassification"
_TEXT_MODELS = re.compile(r"\w+For(CausalLM|ConditionalGeneration|ImageTextToText)")
# Experts' weights, which axolotl adapts as parameters, and their names here.
_SAME_PLUGINS = ("cut_cross_entropy", "kernels", "liger", "swanlab", "expert_parallel", "lm_eval")
# Linear layers of a language model inside one that also takes images.
_LAYERS = re.compile(
    r"(?:model\\?\.|language_model\\?\.|text_model\\?\.)+layers\\?\.\[?\\d\]?\+\\?\."
    r"(?:\(_checkpoint_wrapped_module\\?\.\)\?)?\([\w|]+\)\\?\.\(([\w|]+)\)_proj"
)


_PEFT_LISTS = {
    "lora_modules_to_save": "modules_to_save",
    "lora_target_parameters": "target_parameters",
    "peft_layers_to_transform": "layers_to_transform",
    "peft_trainable_token_indices": "trainable_token_indices",
}


def _model(draft: Draft) -> None:
    name = "model_revision" if "model_revision" in draft.config else "revision_of_model"
    model(draft, "base_model", name)
    if draft.get("base_model_config", draft.config["base_model"]) != draft.config["base_model"]:
        draft.refused["base_model_config"] = "tokenizer and config are those of the model's files"
    if draft.get("reinit_weights"):
        draft.model["random_weights"] = True


def _rows(draft: Draft) -> None:
    length, packing = draft.number("sequence_len", 512), bool(draft.get("sample_packing"))
    is_dpo = draft.get("rl") is not None
    # Chosen and rejected answer have half a row each.
    draft.put("data.block_size", 2 * (length or 512) if is_dpo else length)
    if is_dpo:
        draft.different["sequence_len"] = "block_size is of a pair, so it has room for two answers"
    draft.put("data.packing", packing and not (is_dpo or draft.config.get("reward_model")))
    if draft.get("pretraining_dataset") and draft.config.get("sample_packing") is None:
        draft.put("data.packing", True)
    packed = draft.number("max_packed_sequence_len")
    if packed and packed != length:
        draft.refused["max_packed_sequence_len"] = "set sequence_len to it, and sample_packing"
    elif packed and not packing:
        # How earlier versions packed rows.
        draft.put("data.packing", True)
        draft.different["max_packed_sequence_len"] = "packed documents don't attend to each other"


def _batch(draft: Draft) -> None:
    micro = draft.number("micro_batch_size", 1) or 1
    whole = draft.number("batch_size")
    accumulated = draft.number("gradient_accumulation_steps")
    if accumulated is None:
        accumulated = max(1, int(whole // micro)) if whole else 1
    shared = 1
    ray_workers(draft, bool(draft.get("use_ray")))
    for key in ("context_parallel_size", "sequence_parallel_degree", "tensor_parallel_size"):
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
    if special := draft.get("special_tokens.additional_special_tokens", []):
        known = draft.model.get("new_tokens", [])
        draft.model["new_tokens"] = [*known, *(name for name in special if name not in known)]


def _adapter(draft: Draft) -> None:
    kind = draft.get("adapter")
    four, eight = bool(draft.get("load_in_4bit")), bool(draft.get("load_in_8bit"))
    rank, alpha = draft.number("lora_r", 8), draft.number("lora_alpha", 8)
    dropout, targets = draft.number("lora_dropout", 0.0), draft.get("lora_target_modules", [])
    is_linear = draft.get("lora_target_linear")
    extra = {name: draft.get(f"peft_{name}") for name in ("use_rslora", "use_dora")}
    if kind is None:
        names = [key for key in draft.config if key.startswith(("lora_", "peft_use_"))]
        for key in [key for key in names if draft.config[key]]:
            if not key.endswith("_kernel"):
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
    section |= earlier_adapter(draft, "lora_model_dir", goes_on=True)
    for name in ("rank_pattern", "alpha_pattern"):
        if pattern := draft.get(f"lora_{name}"):
            section[name] = pattern
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
    halves = [key for key in ("fp16", "float16") if draft.get(key)]
    half = next(iter(halves), None)
    on = bf16 not in (False, "false") or bool(plain)
    if half:
        draft.different[half] = "bf16 instead of fp16"
    with_adapter = "adapter" in draft.run
    draft.put("train.precision", "bf16" if bf16 is True or plain else "auto")
    if not (on or half):
        draft.put("train.precision", "fp32")
        if with_adapter:
            draft.run["adapter"]["base_dtype"] = "fp32"
    if draft.get("float32") and (on or half):
        draft.same["float32"] = "bf16 and fp16 count"
    if (on or half) and not with_adapter:
        draft.different["bf16" if on else str(half)] = (
            "trained weights are kept in fp32, which axolotl loads in 16 bits; "
            "train.weights: bf16 takes half the memory"
        )


def _checkpointing(draft: Draft) -> None:
    value = draft.get("gradient_checkpointing", False)
    offloads = value in ("offload", "offload_disk") or draft.get("activation_offloading")
    draft.put("train.gradient_checkpointing", "offload" if offloads else bool(value))


def _schedule(draft: Draft) -> None:
    schedule(draft, "lr_scheduler", "cosine", 0.03, at_most=100)
    least = draft.number("cosine_min_lr_ratio")
    if least is not None and draft.config.get("lr_scheduler") in (None, "cosine"):
        draft.put("train.min_lr_ratio", least)
    elif least:
        draft.same["cosine_min_lr_ratio"] = "only for lr_scheduler: cosine"


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
            draft.same["plugins"] = "kernels, which are chosen here, logging and evaluation"


def _kind(draft: Draft) -> None:
    kind = draft.get("type_of_model") or draft.get("model_type", "AutoModelForCausalLM")
    is_judge = bool(draft.get("reward_model"))
    if not (is_judge and kind == _CLASSIFIER) and not _TEXT_MODELS.fullmatch(kind):
        draft.refused["model_type"] = f"{kind}: only causal language models"
    labels = draft.get("num_labels")
    if labels is not None and (labels != 1 or not is_judge):
        draft.refused["num_labels"] = f"{labels}: only 1, with reward_model"
    if (weight := draft.number("center_rewards_coefficient")) is not None:
        if is_judge:
            draft.put("reward.center_rewards_coefficient", weight)
        else:
            draft.same["center_rewards_coefficient"] = "only with reward_model"
    match draft.get("rl"):
        case None:
            pass
        case "dpo" | "ipo" | "simpo" | "orpo" as loss:
            _preference(draft, loss)
        case "kto":
            draft.put("kto.beta", _beta(draft))
            for kind in ("desirable", "undesirable"):
                draft.put(f"kto.{kind}_weight", draft.number(f"kto_{kind}_weight") or 1.0)
        case other:
            draft.refused["rl"] = f"{other}: only dpo, ipo, simpo, orpo and kto"


# Losses of TRL's DPO, and those here.
_LOSSES = {"sigmoid": "dpo"} | {name: name for name in ("ipo", "hinge", "robust", "sigmoid_norm")}


def _preference(draft: Draft, loss: str) -> None:
    kinds = draft.get("dpo_loss_type") or ["sigmoid"]
    if loss == "dpo" and ([*kinds[1:]] or kinds[0] not in _LOSSES):
        draft.refused["dpo_loss_type"] = f"{', '.join(kinds)}: only one of {', '.join(_LOSSES)}"
    elif loss == "dpo" and draft.get("dpo_loss_weights", [1]) != [1]:
        draft.refused["dpo_loss_weights"] = "a loss has no weight"
    elif loss == "dpo":
        loss = "sigmoid_norm" if draft.get("dpo_norm_loss") else _LOSSES[kinds[0]]
    draft.put("preference.loss", loss)
    draft.put("preference.beta", _beta(draft, *(["orpo_alpha"] if loss == "orpo" else [])))
    weight = draft.number("rpo_alpha")
    if loss == "simpo":
        draft.put("preference.simpo_gamma", draft.number("simpo_gamma", 0.5))
        weight = draft.number("cpo_alpha", 1.0)
    if loss == "orpo":
        draft.different["rl"] = "the likelihood that is added is that of answers, without prompts"
    if weight is not None:
        draft.put("preference.rpo_alpha", weight)
    if smoothing := draft.number("dpo_label_smoothing"):
        draft.put("preference.label_smoothing", smoothing)


def _beta(draft: Draft, *others: str) -> float:
    # The first of these that is there counts.
    strengths = [draft.number(name) for name in ("trl.beta", "rl_beta", *others)]
    return next((each for each in strengths if each is not None), 0.1)


_PREFERENCE = (
    "rl_beta trl.beta orpo_alpha simpo_gamma cpo_alpha rpo_alpha dpo_label_smoothing "
    "dpo_norm_loss dpo_loss_type dpo_loss_weights kto_desirable_weight kto_undesirable_weight"
)


def _kind_and_loss(draft: Draft) -> None:
    _kind(draft)
    for key in _PREFERENCE.split():
        if key in draft.config and key not in draft.read:
            draft.same[key] = f"rl: {draft.config.get('rl')} doesn't use it"


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
        "base_model base_model_config revision_of_model model_revision reinit_weights",
        "`models.NAME`, `random_weights`",
        _model,
    ),
    converts(
        "model_type type_of_model reward_model num_labels center_rewards_coefficient "
        f"rl {_PREFERENCE}",
        "a language model; `reward_model` → `classes_of`, "
        "`reward.center_rewards_coefficient`; `dpo`, `ipo`, `simpo`, `orpo` → `preference.loss`, "
        "`beta`, `simpo_gamma`, `rpo_alpha`, `label_smoothing`; `kto` → `kto.beta`, "
        "`desirable_weight`, `undesirable_weight`",
        _kind_and_loss,
    ),
    converts(
        "datasets pretraining_dataset test_datasets dataset_exact_deduplication val_set_size "
        "train_on_inputs excess_length_strategy",
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
    converts("chat_template_kwargs", "`data.template_variables`", variables),
    converts(
        "special_tokens special_tokens.eos_token special_tokens.additional_special_tokens tokens",
        "`models.NAME.eos_token`, `new_tokens`",
        _tokens,
    ),
    converts(
        "micro_batch_size gradient_accumulation_steps batch_size use_ray ray_num_workers",
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
        "lr_scheduler lr_scheduler_kwargs warmup_ratio warmup_steps cosine_min_lr_ratio",
        "`train.lr_scheduler_type`, `train.warmup_ratio`, `train.min_lr_ratio`",
        _schedule,
    ),
    *ADAMW,
    converts(
        "optimizer",
        "`train.optimizer`: AdamW in all its forms, `adamw` or `adamw_8bit`, and `muon`; others "
        "are refused",
        lambda draft: optimizer(draft, "optimizer", "adamw_torch_fused"),
    ),
    converts(
        "adapter load_in_4bit load_in_8bit lora_r lora_alpha lora_dropout lora_target_modules "
        "lora_target_linear lora_modules_to_save lora_target_parameters peft_use_dora "
        "lora_rank_pattern lora_alpha_pattern peft_use_rslora peft_init_lora_weights "
        "peft_layers_to_transform lora_model_dir "
        "peft_trainable_token_indices",
        "`adapter.rank`, `alpha`, `dropout`, `target_modules`, `use_dora`, `use_rslora`, "
        "`modules_to_save`, `target_parameters`, `init_lora_weights`, `layers_to_transform`, "
        "`trainable_token_indices`, `rank_pattern`, `alpha_pattern`, "
        "`quantize_base: 4bit` or `8bit`, `create_new_adapter: false` with `models.NAME.adapter`",
        _adapter,
    ),
    converts(
        "bf16 bfloat16 fp16 float16 float32", "`train.precision`; fp16 becomes bf16", _precision
    ),
    converts(
        "gradient_checkpointing activation_offloading",
        "`train.gradient_checkpointing`",
        _checkpointing,
    ),
    *RUNNING,
    becomes("early_stopping_patience", "train.early_stopping_patience"),
    becomes("load_best_model_at_end", "train.load_best_model_at_end", read=bool),
    converts("unfrozen_parameters", "all of a language model; others are refused", _unfrozen),
    converts(
        "plugins", "kernels, logging and evaluation have no effect; others are refused", _plugins
    ),
    converts(
        "model_config model_quantization_config model_quantization_config_kwargs bnb_config_kwargs",
        "what is done here in any case; the rest is refused",
        _extras,
    ),
    converts("shuffle_merged_datasets", "rows are always shuffled", _order),
    converts("hub_model_id", "`push.repo`", lambda draft: push(draft, "hub_model_id")),
    lora_plus(),
    *NOTES,
)
# What the documentation shows.
TABLES = {NAME: RULES, "an entry of axolotl's `datasets`": DATASET}
