"""The counterparts of LLaMA-Factory's keys."""

from collections.abc import Sequence
from typing import Any

from moray.extras.importing.adapters import earlier_adapter
from moray.extras.importing.llama_factory_datasets import FORMATS, as_list, datasets
from moray.extras.importing.llama_factory_notes import NOTES
from moray.extras.importing.settings import (
    ADAMW,
    RUNNING,
    lora_plus,
    model,
    muon,
    optimizer,
    push,
    ray_workers,
    schedule,
)
from moray.extras.importing.settings import steps as epochs_or_steps
from moray.extras.importing.table import Draft, Rule, becomes, converts

NAME = "LLaMA-Factory"
MARK = "model_name_or_path"
NESTED = ("fsdp_config",)


_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_PREFERENCE = ("pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing")
_KTO = {"kto_chosen_weight": "desirable_weight", "kto_rejected_weight": "undesirable_weight"}


# Stages whose rows of tokens have two answers.
_ANSWERED = ("dpo", "kto")


def _kind(draft: Draft) -> None:
    stage, loss = draft.get("stage", "sft"), draft.get("pref_loss", "sigmoid")
    if stage not in FORMATS:
        draft.refused["stage"] = f"{stage}: only {', '.join(FORMATS)}"
    if not draft.get("do_train", not draft.get("do_predict")):
        which = "do_predict" if "do_train" not in draft.config else "do_train"
        draft.refused[which] = "nothing is trained; see `moray chat`"
    if stage == "dpo":
        same = ("ipo", "hinge", "orpo", "simpo")
        losses = {"sigmoid": "dpo"} | dict(zip(same, same, strict=True))
        if loss in losses:
            draft.put("preference.loss", losses[loss])
        else:
            draft.refused["pref_loss"] = f"{loss}: only {', '.join(losses)}"
        draft.put("preference.beta", draft.number("pref_beta", 0.1))
        draft.put("preference.label_smoothing", draft.number("dpo_label_smoothing", 0.0))
        if weight := draft.number("pref_ftx"):
            draft.put("preference.rpo_alpha", weight)
        if loss == "simpo":
            draft.put("preference.simpo_gamma", draft.number("simpo_gamma", 0.5))
    if stage == "kto":
        _kto(draft)
    if stage == "rm":
        draft.different["stage"] = (
            "the new output layer is a classifier's, which has no bias; moray initializes it"
        )
    for keys, only in ((_PREFERENCE, "dpo"), (_KTO, "kto")):
        for key in keys:
            if stage != only and key in draft.config and key not in draft.read:
                draft.same[key] = f"only for stage: {only}"


def _kto(draft: Draft) -> None:
    draft.put("kto.beta", draft.number("pref_beta", 0.1))
    for key, here in _KTO.items():
        draft.put(f"kto.{here}", draft.number(key, 1.0))
    if draft.number("pref_ftx"):
        draft.refused["pref_ftx"] = "the likelihood is not added to KTO's loss"


def _model(draft: Draft) -> None:
    model(draft, "model_name_or_path", "model_revision")
    if draft.get("train_from_scratch"):
        draft.model["random_weights"] = True
    if new := as_list(draft.get("add_special_tokens")) + as_list(draft.get("add_tokens")):
        draft.model["new_tokens"] = list(dict.fromkeys(new))
    if draft.get("add_tokens"):
        draft.different["add_tokens"] = "new tokens are special ones"
    if draft.get("init_special_tokens", "noise_init") != "noise_init":
        draft.different["init_special_tokens"] = "embeddings of new tokens begin as the mean"
    if draft.get("ref_model", draft.config.get("model_name_or_path")) != draft.config.get(
        "model_name_or_path"
    ):
        draft.refused["ref_model"] = "the model that a run starts from is its reference"


def _rows(draft: Draft) -> None:
    stage, length = draft.config.get("stage") or "sft", draft.number("cutoff_len", 2048) or 2048
    packing, neat = draft.get("packing"), bool(draft.get("neat_packing"))
    neat = bool(draft.get("use_packed_sequences")) or neat
    packs = bool(stage == "pt" if packing is None else packing) or neat
    draft.put("data.block_size", 2 * length if stage in _ANSWERED else length)
    if stage in _ANSWERED:
        draft.different["cutoff_len"] = "block_size is of a pair, so it has room for two answers"
    draft.put("data.packing", packs and stage not in (*_ANSWERED, "rm"))
    draft.put("data.long_documents", "split" if stage == "pt" else "truncate")
    draft.put("data.mask_history", bool(draft.get("mask_history")))
    if packs and not neat:
        draft.different["packing"] = "packed documents don't attend to each other (neat_packing)"
    if draft.get("train_on_prompt"):
        draft.refused["train_on_prompt"] = "prompts aren't trained"


def _template(draft: Draft) -> None:
    if (name := draft.get("template")) and draft.config.get("stage") != "pt":
        draft.different["template"] = (
            f"the tokenizer's own template is used, not LLaMA-Factory's {name}; set "
            "data.chat_template if it has none"
        )
    thinks = draft.get("enable_thinking")
    if thinks is False and draft.config.get("stage") != "pt":
        draft.put("data.template_variables", {"enable_thinking": False})
        draft.different["enable_thinking"] = (
            "the template puts empty reasoning into the prompt, and rows keep theirs"
        )
    elif thinks:
        draft.different["enable_thinking"] = (
            "empty reasoning that the template puts before an answer isn't trained; "
            "data.train_template_text: true trains it"
        )
    if draft.get("preserve_thinking"):
        draft.different["preserve_thinking"] = (
            "a template that can keep the reasoning of earlier answers does so with "
            "data.template_variables: {preserve_thinking: true}; data.turns: each trains all of it"
        )
    if system := draft.get("default_system"):
        for section in draft.datasets.values():
            section["system"] = system


def _batch(draft: Draft) -> None:
    micro = draft.number("per_device_train_batch_size", 8) or 8
    accumulated = draft.number("gradient_accumulation_steps", 1) or 1
    ray_workers(draft, are_used=True)
    shared = 1
    for key in _PARALLEL:
        shared *= int(draft.config.get(key) or 1)
    draft.put("train.global_batch_size", int(micro * accumulated * max(1, draft.gpus // shared)))
    draft.put("train.micro_batch_size", micro)


def _adapter(draft: Draft) -> None:
    kind, bits = draft.get("finetuning_type", "lora"), draft.number("quantization_bit")
    rank = draft.number("lora_rank", 8) or 8
    alpha, dropout = draft.number("lora_alpha", 2 * rank), draft.number("lora_dropout", 0.0)
    targets = draft.get("lora_target", "all")
    extra = {name: draft.get(name) for name in ("use_rslora", "use_dora")}
    method = draft.get("quantization_method", "bnb")
    double, nf4 = draft.get("double_quantization", True), draft.get("quantization_type", "nf4")
    if bits and (bits not in (4, 8) or method not in ("bnb", "bitsandbytes")):
        draft.refused["quantization_bit"] = f"{bits} by {method}: only 4 and 8 by bnb"
    if bits and nf4 != "nf4":
        draft.refused["quantization_type"] = f"{nf4}: only nf4"
    if bits == 4 and not double:
        draft.different["double_quantization"] = "the scales of 4-bit weights are quantized too"
    if kind == "full":
        if bits:
            draft.refused["quantization_bit"] = "needs an adapter"
        return
    if kind != "lora":
        draft.refused["finetuning_type"] = f"{kind}: only full and lora"
        return
    section: dict[str, Any] = {"rank": rank, "alpha": alpha, "dropout": dropout}
    section["base_dtype"] = "bf16"
    section["target_modules"] = "all-linear" if targets == "all" else as_list(targets)
    section.update({name: True for name, value in extra.items() if value})
    if modules := draft.get("additional_target"):
        section["modules_to_save"] = as_list(modules)
    goes_on = not draft.get("create_new_adapter", False)
    section |= earlier_adapter(draft, "adapter_name_or_path", goes_on)
    steps = draft.number("pissa_iter", 16)
    if draft.get("pissa_init"):
        section["init_lora_weights"] = "pissa" if steps == -1 else f"pissa_niter_{steps}"
    if bits:
        section["quantize_base"] = f"{int(bits)}bit"
    draft.put("adapter", section)


def _optimizer(draft: Draft) -> None:
    if draft.get("use_muon"):
        muon(draft, "use_muon")
    else:
        optimizer(draft, "optim", "adamw_torch")


def _precision(draft: Draft) -> None:
    bf16, pure, half = draft.get("bf16"), draft.get("pure_bf16"), draft.get("fp16")
    if half:
        draft.different["fp16"] = "bf16 instead of fp16"
    on = bf16 or pure or half
    draft.put("train.precision", "bf16" if on else "fp32")
    if not on and "adapter" in draft.run:
        draft.run["adapter"]["base_dtype"] = "fp32"
    if pure and "adapter" not in draft.run:
        draft.put("train.weights", "bf16")
        draft.different["pure_bf16"] = "steps are rounded stochastically, not to the nearest"


def _checkpointing(draft: Draft) -> None:
    off = draft.get("disable_gradient_checkpointing", False)
    draft.get("gradient_checkpointing")
    draft.put("train.gradient_checkpointing", not off)


RULES: Sequence[Rule] = (
    converts(
        "model_name_or_path model_revision train_from_scratch add_special_tokens add_tokens "
        "init_special_tokens ref_model",
        "`models.NAME`, `random_weights`, `new_tokens`",
        _model,
    ),
    converts(
        f"stage do_train do_predict {' '.join(_PREFERENCE)} {' '.join(_KTO)}",
        "`pt`, `sft`, `dpo`, `kto`, `rm`; `preference.loss`, `beta`, `rpo_alpha`, `simpo_gamma`, "
        "`label_smoothing`; `kto.beta`, `desirable_weight`, `undesirable_weight`",
        _kind,
    ),
    converts(
        "dataset dataset_dir eval_dataset val_size max_samples mix_strategy interleave_probs",
        "`datasets.NAME` by `dataset_info.json`: `alpaca` → `instruction`, `sharegpt` → "
        "`messages`, with `ranking` `preference` or `reward`, with `kto_tag` "
        "`unpaired-preference`; `validation_share`",
        datasets,
    ),
    converts(
        "cutoff_len packing neat_packing use_packed_sequences mask_history train_on_prompt",
        "`data.block_size` (for pairs, twice as many tokens), `data.packing`, `data.mask_history`",
        _rows,
    ),
    converts(
        "template default_system enable_thinking preserve_thinking",
        "the tokenizer's own template; `system`; `data.template_variables`",
        _template,
    ),
    converts(
        "per_device_train_batch_size gradient_accumulation_steps ray_num_workers",
        "`train.global_batch_size`: their product, times the GPUs; `train.micro_batch_size`",
        _batch,
    ),
    converts(
        "num_train_epochs max_steps",
        "`train.num_epochs`, `train.max_steps`",
        lambda draft: epochs_or_steps(draft, "num_train_epochs", 3.0),
    ),
    becomes("learning_rate", "train.learning_rate", 5e-5),
    converts(
        "lr_scheduler_type lr_scheduler_kwargs warmup_ratio warmup_steps",
        "`train.lr_scheduler_type`, `train.warmup_ratio`, `train.min_lr_ratio`",
        lambda draft: schedule(draft, "lr_scheduler_type", "linear", 0.0),
    ),
    *ADAMW,
    converts(
        "optim use_muon",
        "`train.optimizer`: AdamW in all its forms, `adamw` or `adamw_8bit`, and `muon`; others "
        "are refused",
        _optimizer,
    ),
    converts(
        "finetuning_type lora_rank lora_alpha lora_dropout lora_target additional_target "
        "use_rslora use_dora pissa_init pissa_iter adapter_name_or_path create_new_adapter "
        "quantization_bit quantization_method quantization_type double_quantization",
        "`adapter.rank`, `alpha`, `dropout`, `target_modules`, `modules_to_save`, `use_rslora`, "
        "`use_dora`, `init_lora_weights`, "
        "`quantize_base: 4bit` or `8bit`, `create_new_adapter` with `models.NAME.adapter`",
        _adapter,
    ),
    converts("bf16 fp16 pure_bf16", "`train.precision`; `train.weights: bf16`", _precision),
    converts(
        "gradient_checkpointing disable_gradient_checkpointing",
        "`train.gradient_checkpointing`",
        _checkpointing,
    ),
    *RUNNING,
    becomes("load_best_model_at_end", "train.load_best_model_at_end", read=bool),
    becomes("early_stopping_steps", "train.early_stopping_patience"),
    converts("hub_model_id", "`push.repo`", lambda draft: push(draft, "hub_model_id")),
    becomes("moe_aux_loss_coef", "train.router_aux_loss", read=lambda value: float(value) or None),
    lora_plus(),
    *NOTES,
)
# What the documentation shows.
TABLES = {NAME: RULES}
