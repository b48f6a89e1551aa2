"""The counterparts of LLaMA-Factory's keys."""

from collections.abc import Sequence
from typing import Any

from moray.extras.importing.llama_factory_datasets import FORMATS, as_list, datasets
from moray.extras.importing.settings import (
    ADAMW,
    RUNNING,
    lora_plus,
    model,
    optimizer,
    push,
    schedule,
)
from moray.extras.importing.settings import steps as epochs_or_steps
from moray.extras.importing.table import Draft, Rule, becomes, converts, differs, no_effect, refused

NAME = "LLaMA-Factory"
MARK = "model_name_or_path"
NESTED = ("fsdp_config",)


def _kind(draft: Draft) -> None:
    stage, loss = draft.get("stage", "sft"), draft.get("pref_loss", "sigmoid")
    if stage not in FORMATS:
        draft.refused["stage"] = f"{stage}: only {', '.join(FORMATS)}"
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
            if key in draft.config:
                draft.same[key] = "only for stage: dpo"


def _rows(draft: Draft) -> None:
    stage, length = draft.config.get("stage") or "sft", draft.number("cutoff_len", 2048) or 2048
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
    if (name := draft.get("template")) and draft.config.get("stage") != "pt":
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
    section["target_modules"] = "all-linear" if targets == "all" else as_list(targets)
    section.update({name: True for name, value in extra.items() if value})
    if modules := draft.get("additional_target"):
        section["modules_to_save"] = as_list(modules)
    steps = draft.number("pissa_iter", 16)
    if draft.get("pissa_init"):
        section["init_lora_weights"] = "pissa" if steps == -1 else f"pissa_niter_{steps}"
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
    converts(
        "model_name_or_path model_revision",
        "`models.NAME`",
        lambda draft: model(draft, "model_name_or_path", "model_revision"),
    ),
    converts(
        "stage do_train pref_loss pref_beta dpo_label_smoothing",
        "`pt`, `sft`, `dpo`; `preference.loss`, `beta`, `label_smoothing`",
        _kind,
    ),
    converts(
        "dataset dataset_dir val_size max_samples mix_strategy interleave_probs",
        "`datasets.NAME` by `dataset_info.json`: `alpaca` → `instruction`, `sharegpt` → "
        "`messages`, with `ranking` `preference`; `validation_share`",
        datasets,
    ),
    converts(
        "cutoff_len packing neat_packing mask_history train_on_prompt",
        "`data.block_size` (for pairs, twice as many tokens), `data.packing`, `data.mask_history`",
        _rows,
    ),
    converts("template default_system", "the tokenizer's own template; `system`", _template),
    converts(
        "per_device_train_batch_size gradient_accumulation_steps",
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
        "lr_scheduler_type warmup_ratio warmup_steps",
        "`train.lr_scheduler_type`, `train.warmup_ratio`, `train.min_lr_ratio`",
        lambda draft: schedule(draft, "lr_scheduler_type", "linear", 0.0),
    ),
    *ADAMW,
    converts(
        "optim",
        "`train.optimizer`: AdamW in all its forms, `adamw` or `adamw_8bit`; others are refused",
        lambda draft: optimizer(draft, "optim", "adamw_torch"),
    ),
    converts(
        "finetuning_type lora_rank lora_alpha lora_dropout lora_target additional_target "
        "use_rslora use_dora pissa_init pissa_iter "
        "quantization_bit quantization_method quantization_type double_quantization",
        "`adapter.rank`, `alpha`, `dropout`, `target_modules`, `modules_to_save`, `use_rslora`, "
        "`use_dora`, `init_lora_weights`, "
        "`quantize_base: 4bit` or `8bit`",
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
    no_effect("plot_loss run_name logging_* include_*", "logging; see tracking, moray report"),
    converts("hub_model_id", "`push.repo`", lambda draft: push(draft, "hub_model_id")),
    becomes("moe_aux_loss_coef", "train.router_aux_loss", read=lambda value: float(value) or None),
    differs("upcast_*", "all layers are in the precision of the run"),
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
        "trust_remote_code use_fast_tokenizer cache_dir",
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
    lora_plus(),
    no_effect("loraplus_lr_embedding", "embeddings have no adapters"),
    no_effect("pissa_convert", "adapters are exported for the original base"),
    refused("oft_* use_llama_pro freeze_*", "no such adapter"),
    refused("fp8 fp8_*", "no such quantization"),
    differs("use_kt kt_*", "PyTorch computes the base in bf16, not KTransformers"),
    no_effect(
        "tensor_model_parallel_size pipeline_model_parallel_size expert_model_parallel_size "
        "sequence_parallel* *_fusion overlap_* moe_grouped_gemm moe_token_dispatcher_type "
        "use_distributed_optimizer "
        "recompute_granularity",
        "layers aren't split over GPUs, as Megatron does; see what fits with `moray plan`",
        off=(1,),
    ),
)
