"""Keys of Transformers, PEFT, TRL, axolotl and LLaMA-Factory, for those who write them from habit.

The config's check answers unknown keys with it. `moray import` converts whole configs; its tables
have the values too.
"""

_PRECISION, _RANK, _TARGETS = "train.precision", "adapter.rank", "adapter.target_modules"
_ROW, _TEMPLATE = (
    "data.block_size, tokens in a row",
    "data.chat_template, the text of a Jinja template",
)
_VARIABLES = "data.template_variables, such as {enable_thinking: false}"
_ROWS = "train.global_batch_size, rows per step over all workers"
_WARMUP = "train.warmup_ratio, a share of the steps"
_QUANTIZED, _BEST = "adapter.quantize_base", "train.load_best_model_at_end, by validation loss"
_HELD_OUT, _SYSTEM = "datasets.NAME.validation_share", "datasets.NAME.system"
_TRACKING, _BETA, _LOSS = "tracking", "preference.beta", "preference.loss"
_TRAINED = "what is trained follows from the dataset's format"
_KERNELS = "kernels are chosen here"

# By their names there, keys below a run or `defaults`, or from the top; what they mean follows a
# comma where they differ.
HERE = {
    "attn_implementation": "train.attention",
    "base_model": "models.NAME, and model of the run",
    "bf16": _PRECISION,
    "bfloat16": _PRECISION,
    "chat_template_jinja": _TEMPLATE,
    "chat_template_kwargs": _VARIABLES,
    "chat_template_path": _TEMPLATE,
    "cosine_min_lr_ratio": "train.min_lr_ratio",
    "cutoff_len": _ROW,
    "data_seed": "train.seed",
    "dataset_text_field": "datasets.NAME.columns",
    "ddp_timeout": "train.stall_timeout",
    "default_system": _SYSTEM,
    "desirable_weight": "kto.desirable_weight",
    "dpo_beta": _BETA,
    "dpo_label_smoothing": "preference.label_smoothing",
    "enable_thinking": _VARIABLES,
    "eos_token": "models.NAME.eos_token",
    "eval_batch_size": "evaluate.batch_size",
    "eval_strategy": "train.eval_steps",
    "evaluation_strategy": "train.eval_steps",
    "finetuning_type": "adapter",
    "flash_attention": "train.attention",
    "flash_attn": "train.attention",
    "fp16": _PRECISION,
    "fsdp": "train.strategy: fsdp2",
    "fsdp_config": "train.fsdp2",
    "gradient_accumulation_steps": _ROWS,
    "greater_is_better": _BEST,
    "hub_model_id": "push.repo",
    "kto_chosen_weight": "kto.desirable_weight",
    "kto_desirable_weight": "kto.desirable_weight",
    "kto_rejected_weight": "kto.undesirable_weight",
    "kto_undesirable_weight": "kto.undesirable_weight",
    "load_in_4bit": _QUANTIZED,
    "load_in_8bit": _QUANTIZED,
    "logging_strategy": "train.logging_steps",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "lora_r": _RANK,
    "lora_rank": _RANK,
    "lora_target": _TARGETS,
    "lora_target_linear": _TARGETS,
    "lora_target_modules": _TARGETS,
    "loss_type": _LOSS,
    "lr": "train.learning_rate",
    "lr_scheduler": "train.lr_scheduler_type",
    "max_length": _ROW,
    "max_seq_length": _ROW,
    "metric_for_best_model": _BEST,
    "model_name_or_path": "models.NAME, and model of the run",
    "model_revision": "models.NAME.revision",
    "neat_packing": "data.packing",
    "num_train_epochs": "train.num_epochs",
    "optim": "train.optimizer",
    "peft_use_dora": "adapter.use_dora",
    "peft_use_rslora": "adapter.use_rslora",
    "per_device_eval_batch_size": "evaluate.batch_size",
    "per_device_train_batch_size": "train.micro_batch_size",
    "pref_beta": _BETA,
    "pref_loss": _LOSS,
    "pure_bf16": "train.weights",
    "push_to_hub": "push.repo",
    "quantization_bit": _QUANTIZED,
    "r": _RANK,
    "report_to": _TRACKING,
    "revision_of_model": "models.NAME.revision",
    "rl": _LOSS,
    "rl_beta": _BETA,
    "sample_packing": "data.packing",
    "save_strategy": "train.save_steps",
    "sequence_len": _ROW,
    "special_tokens": "models.NAME.eos_token",
    "template": _TEMPLATE,
    "tokens": "models.NAME.new_tokens",
    "torch_compile": "train.compile",
    "train_batch_size": _ROWS,
    "undesirable_weight": "kto.undesirable_weight",
    "val_set_size": _HELD_OUT,
    "val_size": _HELD_OUT,
    "wandb_project": _TRACKING,
    "warmup_steps": _WARMUP,
}
# Those that aren't needed, or aren't there, with what is done.
NOWHERE = {
    "adam_epsilon": "AdamW's epsilon is 1e-8",
    "assistant_only_loss": _TRAINED,
    "bias": "biases of a base with an adapter stay as they are",
    "completion_only_loss": _TRAINED,
    "dataloader_num_workers": "workers read their rows themselves",
    "do_train": "snakemake finetune trains",
    "group_by_length": "rows have a random order",
    "neftune_noise_alpha": "no noise is added",
    "output_dir": "results are in results/",
    "overwrite_output_dir": "what is out of date is made again",
    "pad_to_sequence_len": "rows need no padding",
    "ref_model": "the model that a run starts from is its reference",
    "remove_unused_columns": "other columns aren't read",
    "run_name": "the name of a run is its key under runs",
    "task_type": "the task follows from the dataset's format",
    "tf32": _KERNELS,
    "train_on_inputs": _TRAINED,
    "trust_remote_code": "code of models is never run",
}
