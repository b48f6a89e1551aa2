"""Conversions that axolotl and LLaMA-Factory share: both are made of Transformers and PEFT."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from moray.extras.importing.table import REVISION, Draft, Rule, becomes, converts

_ADAMW = {
    "adamw_torch": None,
    "adamw_torch_fused": None,
    "adamw_hf": None,
    "adamw_apex_fused": None,
    "paged_adamw_32bit": None,
    "paged_adamw": None,
}
_ADAMW_8BIT = {
    "adamw_bnb_8bit": None,
    "adamw_8bit": None,
    "paged_adamw_8bit": None,
    "adamw_torch_8bit": "bitsandbytes' AdamW in 8 bits instead of torchao's",
    "adamw_torch_4bit": "AdamW's moments are kept in 8 bits instead of 4",
}
_SCHEDULES = {
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "linear": "linear",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
_SHARDED_BY_NAME = re.compile(r"(?:zero|ds_z)_?([0-3])")


# Endings of files, which repositories' names don't have.
_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".txt")


def lora_plus() -> Rule:
    """The keys of LoRA+; embeddings have no adapters here."""
    return becomes("loraplus_lr_ratio", "train.loraplus_lr_ratio")


def place(name: str) -> dict[str, Any]:
    """The place of a model or a dataset: a path on this machine, or a repository."""
    is_local = name.startswith((".", "/", "~", "$")) or name.endswith(_FILES)
    if is_local or name.count("/") > 1 or Path(name).exists():
        return {"path": name.removeprefix("./")}
    return {"source": "hub", "repo_id": name, "revision": REVISION}


def model(draft: Draft, key: str, revision: str) -> None:
    """The base model."""
    name = draft.get(key)
    if not isinstance(name, str):
        draft.refused[key] = "a model's name is needed"
        return
    if method := re.search("AQLM|AWQ|GPTQ|HQQ", name, re.IGNORECASE):
        draft.refused[key] = f"weights quantized by {method[0]} can't be trained"
    location = place(name)
    commit = draft.get(revision)
    if "repo_id" not in location:
        location = {"source": "path", **location}
    elif commit and re.fullmatch("[0-9a-f]{40}", str(commit)):
        location["revision"] = str(commit)
    elif commit and commit != "main":
        draft.different[revision] = "a whole commit hash is needed; fill it in"
    draft.model |= location


def optimizer(draft: Draft, key: str, default: str) -> None:
    """AdamW in its implementations, and Muon; others are refused."""
    name = str(draft.get(key, default))
    if name in _ADAMW:
        draft.put("train.optimizer", "adamw")
    elif name in _ADAMW_8BIT:
        draft.put("train.optimizer", "adamw_8bit")
        if difference := _ADAMW_8BIT[name]:
            draft.different[key] = difference
    elif name == "muon":
        muon(draft, key)
    elif name == "adafactor":
        draft.refused[key] = (
            "adafactor: PyTorch's, which train.optimizer: adafactor is, takes a rate relative to "
            "the size of the weights, Transformers' doesn't; set both by hand"
        )
    else:
        draft.refused[key] = f"{name}: only AdamW, in fp32 or 8 bits, and Muon can be imported"


def muon(draft: Draft, key: str) -> None:
    """PyTorch's Muon instead of another one."""
    draft.put("train.optimizer", "muon")
    draft.different[key] = (
        "PyTorch's Muon, for matrices of blocks, with updates of the size of AdamW's; others scale "
        "them otherwise, so check train.learning_rate"
    )


def schedule(
    draft: Draft, key: str, default: str, warmup: float, at_most: int | None = None
) -> None:
    """The learning rate's schedule and warm-up; Transformers' schedules end at 0.

    Args:
        draft: to put them into.
        key: the schedule's, in the other tool's config.
        default: its schedule if there is no such key.
        warmup: its share of steps to warm up, likewise.
        at_most: the largest number of steps that it then warms up.
    """
    name = draft.get(key, default)
    steps, ratio = draft.number("warmup_steps"), draft.number("warmup_ratio")
    spelling = _SCHEDULES.get(name)
    least = _least_rate(draft, name)
    if spelling is None:
        draft.refused[key] = f"{name}: only {', '.join(_SCHEDULES)}"
        return
    draft.put("train.lr_scheduler_type", spelling)
    if spelling != "constant":
        draft.put("train.min_lr_ratio", least)
    total = draft.config.get("max_steps")
    if steps and ratio and name != "constant":
        draft.same["warmup_ratio"] = "warmup_steps is there too, and counts"
    if name == "constant":
        if steps or ratio:
            which = "warmup_steps" if steps else "warmup_ratio"
            draft.same[which] = "Transformers' constant schedule has no warm-up"
        warmup = 0.0
    elif ratio and not steps:
        # No steps are as if the key weren't there.
        warmup = ratio
    elif steps is not None and steps < 1:
        warmup = steps
    elif steps and total and steps >= float(total) > 0:
        draft.refused["warmup_steps"] = (
            f"{steps} steps in a run of {total}, which would end before its peak learning rate"
        )
        return
    elif steps and total and float(total) > 0:
        warmup = round(steps / float(total), 6)
    elif steps:
        draft.different["warmup_steps"] = (
            f"set train.warmup_ratio to {steps} divided by the run's number of steps, which isn't "
            f"known here; it is {warmup:g}"
        )
    elif ratio is not None:
        warmup = 0.0
    elif at_most and total and float(total) > 0:
        warmup = round(min(warmup, at_most / float(total)), 6)
    elif at_most:
        draft.different["warmup_ratio"] = (
            f"{warmup:g} of the run's steps by default, but there at most {at_most} steps"
        )
    draft.put("train.warmup_ratio", warmup)


def _least_rate(draft: Draft, name: str) -> float:
    """The final learning rate, as a share, of the one schedule that has one besides 0."""
    settings = draft.get("lr_scheduler_kwargs", {})
    if isinstance(settings, str):
        settings = yaml.safe_load(settings)
    settings = dict(settings)
    share, rate = settings.pop("min_lr_rate", None), settings.pop("min_lr", None)
    if settings or (name != "cosine_with_min_lr" and (share or rate)):
        draft.refused["lr_scheduler_kwargs"] = "only min_lr and min_lr_rate of cosine_with_min_lr"
    if name == "cosine_with_min_lr" and share is None and rate is None:
        draft.refused["lr_scheduler_kwargs"] = "cosine_with_min_lr needs min_lr or min_lr_rate"
    if share is None and rate:
        share = round(float(rate) / float(draft.config.get("learning_rate") or 5e-5), 9)
    return float(share or 0.0)


def steps(draft: Draft, epochs: str, default: float) -> None:
    """Epochs, or steps, which come first."""
    number, limit = draft.number(epochs, default), draft.number("max_steps")
    draft.put("train.num_epochs", number)
    if limit and limit > 0:
        draft.put("train.max_steps", limit)


def _shards(draft: Draft) -> None:
    """DeepSpeed by the name of its file, FSDP by its settings: the parts that each GPU has."""
    config = draft.get("deepspeed", "")
    config = _named(config) if isinstance(config, Mapping) else str(config)
    stage = _SHARDED_BY_NAME.search(Path(config).name)
    words, file = draft.get("fsdp", ""), draft.get("fsdp_config")
    fsdp = words or file or any(name.startswith("fsdp_config.") for name in draft.config)
    wants_fsdp2 = (
        draft.run["train"].get("optimizer") == "adamw_8bit"
        or draft.run.get("adapter", {}).get("quantize_base") is not None
    )
    if "fp8" in Path(config).name:
        draft.refused["deepspeed"] = "no such quantization as FP8"
    elif config and not stage:
        draft.refused["deepspeed"] = (
            "the name of the file doesn't tell the stage of ZeRO (zero2, ds_z3)"
        )
    elif stage and stage[1] != "0":
        offload = "offload" in config
        if wants_fsdp2:
            draft.same["deepspeed"] = (
                "strategy: fsdp2 shards what DeepSpeed can't here (4-bit, 8-bit)"
            )
            draft.put("train.strategy", "fsdp2")
            if offload:
                draft.put("train.fsdp2.cpu_offload", True)
            return
        draft.put("train.strategy", "deepspeed")
        draft.put("train.deepspeed.zero_stage", int(stage[1]))
        if offload and "offload_params" not in config:
            draft.put("train.deepspeed.offload_optimizer", True)
        if offload and stage[1] == "3":
            draft.put("train.deepspeed.offload_parameters", True)
    elif fsdp:
        draft.put("train.strategy", "fsdp2")
        _fsdp(draft)


def _named(config: Mapping[str, Any]) -> str:
    """The usual name of a file with this config of DeepSpeed."""
    zero = dict(config.get("zero_optimization", {}))
    both = {name: dict(zero.get(f"offload_{name}") or {}) for name in ("optimizer", "param")}
    places = {name: str(part.get("device", "none")) for name, part in both.items()}
    name = f"zero{zero.get('stage', 0)}" + ("_fp8" if "fp8" in config else "")
    match [places["optimizer"] != "none", places["param"] != "none"]:
        case [True, _]:
            return f"{name}_offload"
        case [False, True]:
            return f"{name}_offload_params"
    return name


def _fsdp(draft: Draft) -> None:
    if draft.get("fsdp_config"):
        draft.refused["fsdp_config"] = "a file, which isn't read; write its settings here"
    # Transformers' earlier form: `full_shard auto_wrap offload`.
    words = str(draft.get("fsdp", ""))
    if "offload" in words:
        draft.put("train.fsdp2.cpu_offload", True)
    if "shard_grad_op" in words:
        draft.put("train.fsdp2.reshard_after_forward", False)
    for prefix in ("fsdp_config.", "fsdp_config.fsdp_"):
        if draft.get(f"{prefix}offload_params"):
            draft.put("train.fsdp2.cpu_offload", True)
        if draft.get(f"{prefix}activation_checkpointing"):
            draft.put("train.gradient_checkpointing", True)
        if draft.get(f"{prefix}reshard_after_forward") is False:
            draft.put("train.fsdp2.reshard_after_forward", False)
        kind = draft.get(f"{prefix}sharding_strategy", "FULL_SHARD")
        if kind == "SHARD_GRAD_OP":
            draft.put("train.fsdp2.reshard_after_forward", False)
        elif kind != "FULL_SHARD":
            draft.refused[f"{prefix}sharding_strategy"] = f"{kind}: only FULL_SHARD, SHARD_GRAD_OP"


def ray_workers(draft: Draft, are_used: bool) -> None:
    """Ray's workers are the GPUs, each with a batch of its own."""
    workers = draft.number("ray_num_workers", 1) or 1
    if are_used and workers > 1:
        draft.gpus = int(workers)
        draft.same["ray_num_workers"] = f"batches are those of {workers:g} GPUs; see ray"


def held_out(draft: Draft, key: str) -> float:
    """The share of rows for validation. A number of rows can't be turned into one here."""
    draft.origin["validation_share"] = (key,)
    share = draft.number(key, 0.0) or 0.0
    if share < 1:
        return share
    draft.different[key] = f"got {share:g} rows; a share of 0.05 is held out instead"
    return 0.05


def same_but_for_place(draft: Draft, others: Sequence[Mapping[str, Any]]) -> bool:
    """Put the place of rows for validation beside that of the dataset's, if both are alike."""
    sections = [*draft.datasets.values()]
    for section in sections:
        section["validation_share"] = 0.05
    if len(sections) != 1 or len(others) != 1:
        return False
    own, other = sections[0], others[0]
    shares = {"validation_share", "test_share"}
    key = "split" if "repo_id" in own else "url" if "url" in own else "path"
    if any(own.get(name) != other.get(name) for name in {*own, *other} - {key} - shares):
        return False
    if key not in other or own[key] == other[key]:
        return False
    own[key] = {"train": own[key], "validation": other[key]}
    return True


# Keys of trackers that tracking has too, by the beginnings of their names.
_TRACKERS = {"wandb_": "wandb", "mlflow_": "mlflow", "tensorboard": "tensorboard"}
_SET_UP = {
    "wandb_project": "the project is that of WANDB_PROJECT",
    "mlflow_experiment_name": "the experiment is that of MLFLOW_EXPERIMENT_NAME",
    "mlflow_tracking_uri": "the server is that of MLFLOW_TRACKING_URI",
}


def _tracking(draft: Draft) -> None:
    """Trackers that are named, or set up."""
    value = draft.get("report_to", [])
    names = [str(name) for name in ([value] if isinstance(value, str) else value)]
    trackers = [name for name in names if name in _TRACKERS.values()]
    if len(trackers) < len({*names} - {"none", ""}):
        draft.same["report_to"] = "logging; see tracking"
    for key in draft.config:
        tracker = next((name for start, name in _TRACKERS.items() if key.startswith(start)), None)
        if tracker and draft.get(key):
            trackers.append(tracker)
            if text := _SET_UP.get(key):
                draft.different[key] = text
            else:
                draft.same[key] = "logging; the tracker's environment variables set it up"
        elif tracker:
            draft.off.append(key)
    trackers += [name for name in _TRACKERS.values() if draft.get(f"use_{name}")]
    if draft.config.get("wandb_mode") == "disabled":
        trackers = [name for name in trackers if name != "wandb"]
    if trackers:
        draft.put("tracking", sorted({*trackers}))


def push(draft: Draft, key: str) -> None:
    """The repository that the model is uploaded to."""
    if repo := draft.get(key):
        draft.put("push.repo", str(repo))
        draft.different[key] = "`snakemake push` uploads the model, not each training"


def combine(draft: Draft) -> None:
    """Name the datasets in the run."""
    names = [*draft.datasets]
    one = names[0] if names else None
    draft.put("dataset", dict.fromkeys(names, 1.0) if len(names) > 1 else one)


def judge(draft: Draft, key: str) -> None:
    """Make the model one of rewards, for the pairs of the only dataset."""
    if len(draft.datasets) > 1:
        draft.refused[key] = "a reward model is trained on one dataset"
    draft.model["classes_of"] = next(iter(draft.datasets), None)


def _intervals(draft: Draft) -> None:
    """Steps between lines, evaluations and checkpoints."""
    for key in ("logging_steps", "eval_steps", "save_steps", "save_total_limit"):
        number = draft.number(key)
        total = draft.config.get("max_steps") or 0
        if number and 0 < number < 1 and float(total) > 0:
            number = max(1, round(number * float(total)))
        if number and number >= 1:
            draft.put(f"train.{key}", number)
        elif number:
            draft.same[key] = "a share of the run's steps, whose number isn't known here"


# AdamW's keys, with Transformers' defaults.
ADAMW: Sequence[Rule] = (
    becomes("weight_decay", "train.weight_decay", 0.0),
    becomes("adam_beta1", "train.adam_beta1", 0.9),
    becomes("adam_beta2", "train.adam_beta2", 0.999),
    becomes("max_grad_norm", "train.max_grad_norm", 1.0),
)
# How a run is executed, and what it does from step to step.
RUNNING: Sequence[Rule] = (
    converts(
        "deepspeed fsdp fsdp_config fsdp_config.*offload_params "
        "fsdp_config.*activation_checkpointing fsdp_config.*reshard_after_forward "
        "fsdp_config.*sharding_strategy",
        "`train.strategy`, `train.fsdp2`, `train.deepspeed` by the name of its file",
        _shards,
    ),
    becomes("seed", "train.seed", 42),
    converts(
        "report_to use_wandb use_mlflow use_tensorboard wandb_* mlflow_* tensorboard*",
        "`tracking`, whose project and server are set by environment variables",
        _tracking,
    ),
    converts(
        "logging_steps eval_steps save_steps save_total_limit",
        "the same names in `train`",
        _intervals,
    ),
)
