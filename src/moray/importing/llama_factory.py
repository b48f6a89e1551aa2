"""What becomes of each key of LLaMA-Factory's configs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moray.importing.settings import (
    ADAMW,
    RUNNING,
    combine,
    held_out,
    model,
    optimizer,
    place,
    schedule,
)
from moray.importing.settings import steps as epochs_or_steps
from moray.importing.table import Draft, Rule, becomes, differs, made, no_effect, refused

NAME = "LLaMA-Factory"
MARK = "model_name_or_path"
NESTED = ("fsdp_config",)

_FORMATS = {"sft": "instruction", "pt": "text", "dpo": "preference"}
# Its names for the columns, by the format here: those that differ from its own defaults.
_COLUMNS = {
    "instruction": {
        "prompt": "instruction",
        "query": "input",
        "response": "output",
        "system": "system",
        "history": "history",
    },
    "messages": {"messages": "messages", "system": "system", "tools": "tools"},
    "preference": {
        "prompt": "prompt",
        "messages": "prompt",
        "chosen": "chosen",
        "rejected": "rejected",
        "system": "system",
        "tools": "tools",
    },
    "text": {"prompt": "text"},
}
_KNOWN = {
    *("file_name", "hf_hub_url", "formatting", "columns", "subset", "split", "folder"),
    *("ranking", "tags", "num_samples"),
}
_SHAREGPT_TAGS = {
    "role_tag": ("role", "from"),
    "content_tag": ("content", "value"),
    "user_tag": ("user", "human"),
    "assistant_tag": ("assistant", "gpt"),
    "observation_tag": ("observation", "tool"),
    "function_tag": ("function_call",),
    "system_tag": ("system",),
}


def _listed(value: Any) -> list[str]:
    entries = value.split(",") if isinstance(value, str) else list(value or [])
    return [str(entry).strip() for entry in entries]


def _datasets(draft: Draft) -> None:
    stage = draft.get("stage", "sft")
    share = held_out(draft, "val_size")
    folder, limit = Path(str(draft.get("dataset_dir", "data"))), draft.number("max_samples")
    names = _listed(draft.get("dataset"))
    if not names:
        draft.refused["dataset"] = "no dataset: nothing is trained; see `moray chat`, export"
    index = folder / "dataset_info.json"
    described = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else {}
    for name in names if stage in _FORMATS else []:
        entry = described.get(name)
        if entry is None:
            section: dict[str, Any] = {
                "source": "files",
                "path": f"{folder}/{name}.json",
                "format": _FORMATS[stage],
            }
            missing = (
                f"{index} doesn't describe {name}"
                if index.is_file()
                else f"there is no {index} below the current folder"
            )
            draft.different["dataset"] = f"{missing}; correct path and format"
        else:
            section = _described(draft, name, entry, stage, folder)
        if limit and "repo_id" in section and "[" not in section["split"]:
            section["split"] += f"[:{int(limit)}]"
        elif limit:
            draft.different["max_samples"] = "all rows of a file are used"
        if section["format"] == "instruction":
            draft.different["stage"] = "an empty line is between an instruction and its input"
        section.update({"validation_share": share, "test_share": 0.05})
        _add(draft, "".join(c if c.isalnum() else "-" for c in name), section)
    weights = [float(weight) for weight in _listed(draft.get("interleave_probs"))]
    combine(draft)
    mixes = str(draft.get("mix_strategy", "concat")) != "concat"
    if len(draft.datasets) > 1 and mixes and len(weights) == len(draft.datasets):
        draft.put("dataset", dict(zip(draft.datasets, weights, strict=True)))
        draft.different["interleave_probs"] = "shares of the tokens, not of the rows"
    elif len(draft.datasets) > 1:
        draft.different.setdefault("dataset", "")
        text = "shares of the tokens are equal; LLaMA-Factory's follow from the sizes"
        draft.different["dataset"] = f"{draft.different['dataset']}; {text}".removeprefix("; ")


def _add(draft: Draft, name: str, section: dict[str, Any]) -> None:
    """Add a dataset. Files that are read in the same way are one, as when they are concatenated."""
    rest = {key: value for key, value in section.items() if key != "path"}
    mixed = draft.given.get("mix_strategy") not in (None, "concat")
    for other in draft.datasets.values() if "path" in section and not mixed else ():
        if "path" in other and {key: other[key] for key in other if key != "path"} == rest:
            paths = other["path"] if isinstance(other["path"], list) else [other["path"]]
            other["path"] = [*paths, section["path"]]
            return
    draft.datasets[name] = section


def _described(
    draft: Draft, name: str, entry: Mapping[str, Any], stage: str, folder: Path
) -> dict[str, Any]:
    """A dataset as `dataset_info.json` describes it."""
    file = entry.get("file_name")
    section: dict[str, Any] = {"source": "files", "path": f"{folder}/{file}"}
    if file is None:
        section = place(str(entry.get("hf_hub_url")))
        section["split"] = entry.get("split", "train")
        section |= {"name": entry["subset"]} if entry.get("subset") else {}
        section |= {"data_dir": entry["folder"]} if entry.get("folder") else {}
    format = _FORMATS[stage]
    if stage == "sft" and entry.get("formatting", "alpaca") != "alpaca":
        format = "messages"
    section["format"] = format
    given = dict(entry.get("columns", {}))
    defaults = {"messages": "conversations"}
    known = _COLUMNS[format]
    refusals = [f"columns.{key}" for key in given.keys() - known.keys() if given[key]]
    refusals += list(entry.keys() - _KNOWN)
    refusals += [
        f"tags.{key}"
        for key, tag in entry.get("tags", {}).items()
        if tag not in _SHAREGPT_TAGS.get(key, ())
    ]
    if stage != "dpo" and entry.get("ranking"):
        refusals.append("ranking")
    if refusals:
        draft.refused[f"dataset.{name}"] = f"{', '.join(refusals)}: no counterpart"
    # Of a file of pairs, an unnamed prompt is in LLaMA-Factory's default column.
    columns = {
        known[key]: column
        for key, column in given.items()
        if key in known and column not in (known[key], defaults.get(key))
    }
    if format == "text" and "prompt" not in given:
        columns = {"text": "instruction"}
    section |= {"columns": columns} if columns else {}
    return section


def _kind(draft: Draft) -> None:
    stage, loss = draft.get("stage", "sft"), draft.get("pref_loss", "sigmoid")
    if stage not in _FORMATS:
        draft.refused["stage"] = f"{stage}: only {', '.join(_FORMATS)}"
    if draft.get("do_train") is False:
        draft.refused["do_train"] = "nothing is trained"
    if stage == "dpo":
        losses = {"sigmoid": "dpo", "ipo": "ipo"}
        if loss in losses:
            draft.put("preference.loss", losses[loss])
        else:
            draft.refused["pref_loss"] = f"{loss}: only {', '.join(losses)}"
        draft.put("preference.beta", draft.number("pref_beta", 0.1))
        draft.put("preference.label_smoothing", draft.number("dpo_label_smoothing", 0.0))
    else:
        for key in ("pref_loss", "pref_beta", "dpo_label_smoothing"):
            if key in draft.given:
                draft.same[key] = "only for stage: dpo"


def _rows(draft: Draft) -> None:
    stage, length = draft.given.get("stage") or "sft", draft.number("cutoff_len", 2048) or 2048
    packing, neat = draft.get("packing"), bool(draft.get("neat_packing"))
    packs = bool(stage == "pt" if packing is None else packing) or neat
    draft.put("data.block_size", 2 * length if stage == "dpo" else length)
    if stage == "dpo":
        draft.different["cutoff_len"] = "block_size is of a pair, so it has room for two answers"
    draft.put("data.packing", packs and stage != "dpo")
    draft.put("data.long_documents", "split" if stage == "pt" else "truncate")
    draft.put("data.mask_history", bool(draft.get("mask_history")))
    if packs and not neat:
        draft.different["packing"] = "packed documents don't attend to each other (neat_packing)"
    if draft.get("train_on_prompt"):
        draft.refused["train_on_prompt"] = "prompts aren't trained"


def _template(draft: Draft) -> None:
    if (name := draft.get("template")) and draft.given.get("stage") != "pt":
        draft.different["template"] = (
            f"the tokenizer's own template is used, not LLaMA-Factory's {name}; set "
            "data.chat_template if it has none"
        )
    if system := draft.get("default_system"):
        for section in draft.datasets.values():
            section["system"] = system


def _batch(draft: Draft) -> None:
    micro = draft.number("per_device_train_batch_size", 8) or 8
    accumulated = draft.number("gradient_accumulation_steps", 1) or 1
    draft.put("train.global_batch_size", int(micro * accumulated * draft.gpus))
    draft.put("train.micro_batch_size", micro)


def _adapter(draft: Draft) -> None:
    kind, bits = draft.get("finetuning_type", "lora"), draft.number("quantization_bit")
    rank = draft.number("lora_rank", 8) or 8
    alpha, dropout = draft.number("lora_alpha", 2 * rank), draft.number("lora_dropout", 0.0)
    targets = draft.get("lora_target", "all")
    extra = {name: draft.get(name) for name in ("use_rslora", "use_dora")}
    method = draft.get("quantization_method", "bnb")
    double, nf4 = draft.get("double_quantization", True), draft.get("quantization_type", "nf4")
    if bits and (bits, method) not in ((4, "bnb"), (8, "bnb")):
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
    section["target_modules"] = "all-linear" if targets == "all" else _listed(targets)
    section.update({name: True for name, value in extra.items() if value})
    if bits:
        section["quantize_base"] = f"{int(bits)}bit"
    draft.put("adapter", section)


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
    made(
        "model_name_or_path model_revision",
        "`models.NAME`",
        lambda draft: model(draft, "model_name_or_path", "model_revision"),
    ),
    made(
        "stage do_train pref_loss pref_beta dpo_label_smoothing",
        "`pt`, `sft`, `dpo`; `preference.loss`, `beta`, `label_smoothing`",
        _kind,
    ),
    made(
        "dataset dataset_dir val_size max_samples mix_strategy interleave_probs",
        "`datasets.NAME` by `dataset_info.json`: `alpaca` → `instruction`, `sharegpt` → "
        "`messages`, with `ranking` `preference`; `validation_share`",
        _datasets,
    ),
    made(
        "cutoff_len packing neat_packing mask_history train_on_prompt",
        "`data.block_size` (for pairs, twice as many tokens), `data.packing`, `data.mask_history`",
        _rows,
    ),
    made("template default_system", "the tokenizer's own template; `system`", _template),
    made(
        "per_device_train_batch_size gradient_accumulation_steps",
        "`train.global_batch_size`: their product, times the GPUs; `train.micro_batch_size`",
        _batch,
    ),
    made(
        "num_train_epochs max_steps",
        "`train.num_epochs`, `train.max_steps`",
        lambda draft: epochs_or_steps(draft, "num_train_epochs", 3.0),
    ),
    becomes("learning_rate", "train.learning_rate", 5e-5),
    made(
        "lr_scheduler_type warmup_ratio warmup_steps",
        "`train.lr_scheduler_type`, `train.warmup_ratio`, `train.min_lr_ratio`",
        lambda draft: schedule(draft, "lr_scheduler_type", "linear", 0.0),
    ),
    *ADAMW,
    made(
        "optim",
        "`train.optimizer`: AdamW in all its forms, `adamw` or `adamw_8bit`; others are refused",
        lambda draft: optimizer(draft, "optim", "adamw_torch"),
    ),
    made(
        "finetuning_type lora_rank lora_alpha lora_dropout lora_target use_rslora use_dora "
        "quantization_bit quantization_method quantization_type double_quantization",
        "`adapter.rank`, `alpha`, `dropout`, `target_modules`, `use_rslora`, `use_dora`, "
        "`quantize_base: 4bit` or `8bit`",
        _adapter,
    ),
    made("bf16 fp16 pure_bf16", "`train.precision`; `train.weights: bf16`", _precision),
    made(
        "gradient_checkpointing disable_gradient_checkpointing",
        "`train.gradient_checkpointing`",
        _checkpointing,
    ),
    *RUNNING,
    becomes("load_best_model_at_end", "train.load_best_model_at_end", read=bool),
    no_effect(
        "report_to plot_loss run_name logging_* include_*", "logging; see tracking, moray report"
    ),
    no_effect(
        "output_dir overwrite_* save_only_model save_strategy save_safetensors ddp_* *_num_workers "
        "preprocessing_batch_size do_eval eval_strategy per_device_eval_batch_size eval_on_start "
        "dataloader_* export_* fsdp_transformer_layer_cls_to_wrap fsdp_config.*",
        "results/ and its checkpoints; processes, see ray.num_workers",
    ),
    no_effect(
        "flash_attn enable_liger_kernel use_v1_kernels tf32 use_reentrant_gc use_unsloth_gc "
        "gradient_checkpointing_kwargs torch_compile*",
        "kernels are chosen here; see train.attention",
    ),
    no_effect(
        "trust_remote_code use_fast_tokenizer upcast_* cache_dir",
        "tokenizers and models are those that Transformers has",
    ),
    differs("group_by_length", "rows have a random order"),
    refused(
        "image_* video_* audio_* freeze_vision_tower freeze_multi_modal_projector "
        "freeze_language_model media_dir",
        "images and sound aren't trained with text",
    ),
    refused("adapter_name_or_path", "export that run merged, and start from it"),
    refused("infer_* vllm_*", "nothing is trained; see `moray chat`"),
    refused("resume_from_checkpoint", "checkpoints of other tools aren't read"),
    refused("export_quantization_*", "no such quantization"),
    refused(
        "use_galore galore_* use_apollo apollo_* use_badam badam_* use_adam_mini use_muon",
        "no such optimizer, only AdamW",
    ),
    refused("use_dft_loss use_asft_loss asft_* pref_ftx simpo_* kto_*", "no such loss"),
    refused("oft_* pissa_* loraplus_* use_llama_pro freeze_*", "no such adapter"),
    refused("fp8 fp8_*", "no such quantization"),
    differs("use_kt kt_*", "PyTorch computes the base in bf16, not KTransformers"),
    refused("additional_target", "adapters are for linear layers"),
    no_effect(
        "tensor_model_parallel_size pipeline_model_parallel_size expert_model_parallel_size "
        "sequence_parallel* *_fusion overlap_* moe_* use_distributed_optimizer "
        "recompute_granularity",
        "layers aren't split over GPUs, as Megatron does; see what fits with `moray plan`",
        off=(1,),
    ),
)
