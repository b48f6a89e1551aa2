"""Faults in how a run is trained: strategies, launchers, adapters, schedules."""

from typing import Any

from small_config import check_faults, config_with, faults

from moray.config.load import load_experiment
from moray.config.schema.train import Adapter

TRAIN, ADAPTER, RAY = "runs.tuned.train", "runs.tuned.adapter", "runs.tuned.ray"

FAULTS: list[tuple[str, object, str]] = [
    # Misspelt keys.
    (f"{TRAIN}.fsdp2.cpu_ofload", True, "unknown key; did you mean cpu_offload?"),
    (
        f"{TRAIN}.fsdp2.zero_stage",
        2,
        "unknown key; expected one of reshard_after_forward, cpu_offload, shard_size",
    ),
    (f"{ADAPTER}.rnk", 4, "unknown key; did you mean rank?"),
    ("defaults.adapter.rnk", 4, "unknown key; did you mean rank?"),
    # Wrong types, and values out of range.
    (f"{TRAIN}.fsdp2", True, "got True, expected a mapping; "),
    (f"{TRAIN}.strategy", "fsdp", "got 'fsdp', expected 'ddp', 'fsdp2' or 'deepspeed'; "),
    (f"{TRAIN}.compile", "maybe", "got 'maybe', expected 'auto' or true or false; "),
    (f"{TRAIN}.early_stopping_patience", 0, "got 0, expected more than 0; "),
    (ADAPTER, 8, "got 8, expected a mapping; "),
    (
        f"{ADAPTER}.init_lora_weights",
        "loftq",
        "got loftq, which begins from weights in 4 bits that PEFT makes of a "
        "base by itself, expected gaussian, orthogonal, pissa, pissa_niter_N or olora; change it",
    ),
    (f"{ADAPTER}.target_modules", "*_proj", "got *_proj, expected all-linear, a list of names or "),
    (f"{ADAPTER}.rank_pattern.q_proj", 0, "got 0, expected more than 0; "),
    (f"{TRAIN}.loraplus_lr_ratio", 4, "is for adapters only; remove it"),
    (f"{ADAPTER}.quantize_base", "2bit", "got '2bit', expected '4bit' or '8bit'; "),
    # No port, none that is one, no host.
    *(
        (
            "runs.tuned.ray.address",
            address,
            f"got {address}, expected local, auto, host:port or ray://host:port; ",
        )
        for address in ("head", "head:six", "head:70000", "ray://head", ":6379", "Local")
    ),
    # Of object stores, only these were tried.
    *(
        (
            f"{section}.ray.storage_path",
            address,
            f"got {address.partition('//')[0]}//…, expected a folder that all workers share, or "
            "s3://bucket/prefix or gs://bucket/prefix; mount another store and set the mounted "
            "folder",
        )
        for section in ("defaults", "runs.tuned")
        for address in (
            "s3://key:secret@bucket/state",
            "s3:///state",
            "az://bucket",
            "gs://",
            "file:///state",
        )
    ),
]


def test_a_fault_costs_one_line_that_begins_with_its_path() -> None:
    for path, value, problem in FAULTS:
        check_faults({path: value}, f"{path}: {problem}")


def test_the_names_of_layers_are_looked_at_one_by_one() -> None:
    (message,) = faults({f"{ADAPTER}.target_modules": ["q_proj", 3]})
    assert message.startswith(f"{ADAPTER}.target_modules.1: got 3, expected text; ")
    (message,) = faults({f"{ADAPTER}.target_modules": []})
    assert message.startswith(
        f"{ADAPTER}.target_modules: got [], expected text or at least 1 entry; "
    )


# What is set, at the key whose fault it is, and how the line goes on from there.
AT_ODDS: list[tuple[dict[str, Any], str, str]] = [
    (
        {f"{RAY}.num_workers": {"min": 3, "max": 2}},
        f"{RAY}.num_workers.min",
        "got 3, expected at most max (2); lower it",
    ),
    (
        {f"{RAY}.num_workers": {"min": 1, "max": 2, "mix": 1}},
        f"{RAY}.num_workers.mix",
        "unknown key; did you mean min?",
    ),
    (
        {f"{RAY}.num_workers": {"min": 1, "max": 2}, f"{TRAIN}.launcher": "torchrun"},
        f"{RAY}.num_workers",
        "got a range, expected one number with train.launcher: torchrun, which doesn't change it "
        "during a run; choose a number, or set launcher to ray",
    ),
    (
        {f"{RAY}.num_workers": {"min": 1, "max": 20}, f"{TRAIN}.global_batch_size": 16},
        f"{RAY}.num_workers.max",
        "got 20, expected at most train.global_batch_size (16); change one of them",
    ),
    (
        {f"{RAY}.num_workers": 4, f"{TRAIN}.fsdp2.shard_size": 3},
        f"{TRAIN}.fsdp2.shard_size",
        "got 3, expected a divisor of ray.num_workers (4); change one of them",
    ),
    (
        {f"{RAY}.num_workers": {"min": 1, "max": 2}, f"{TRAIN}.fsdp2.shard_size": 2},
        f"{TRAIN}.fsdp2.shard_size",
        "got 2 with a range of workers, which it may not divide; set ray.num_workers to one "
        "number, or remove it",
    ),
    *(
        (
            {
                f"{section}.train.deepspeed.offload_parameters": True,
                f"{section}.train.deepspeed.zero_stage": stage,
            },
            f"{section}.train.deepspeed.offload_parameters",
            "true needs zero_stage: 3, the only one that shards parameters, got zero_stage: "
            f"{stage}; change one of them",
        )
        for section in ("defaults", "runs.tuned")
        for stage in (1, 2)
    ),
    *(
        (
            {
                f"{section}.train": {
                    "lr_scheduler_type": "wsd",
                    "decay_ratio": 0.8,
                    "warmup_ratio": 0.3,
                }
            },
            f"{section}.train.decay_ratio",
            "got 0.8 with warmup_ratio 0.3, expected a sum of at most 1; lower one of them",
        )
        for section in ("defaults", "runs.tuned")
    ),
    (
        {f"{TRAIN}.launcher": "torchrun", "runs.tuned.data.loader": "stream"},
        f"{TRAIN}.launcher",
        "torchrun can't be combined with data.loader: stream, which needs Ray; change one of them",
    ),
    (
        {"runs.tuned.ray.storage_path": "s3://bucket/state", "runs.tuned.data.loader": "stream"},
        "runs.tuned.data.loader",
        "stream reads from a folder, and ray.storage_path is s3://bucket/state; set "
        "data.stream_from to a URL, or loader to memory",
    ),
    *(
        (
            {f"{section}.ray": {"use_gpu": False, "resources_per_worker": {"GPU": 1}}},
            f"{section}.ray.resources_per_worker.GPU",
            "got 1, but use_gpu is false; remove it, or set use_gpu to true or auto",
        )
        for section in ("defaults", "runs.tuned")
    ),
    *(
        (
            {f"{section}.ray": {"use_gpu": use, "resources_per_worker": {"GPU": share}}},
            f"{section}.ray.resources_per_worker.GPU",
            f"got {share}, expected a whole number, because workers can't share a GPU; set it to 1 "
            "or remove it",
        )
        for section in ("defaults", "runs.tuned")
        for use, share in ((True, 0.5), ("auto", 1.5))
    ),
    (
        {f"{ADAPTER}.quantize_base": "8bit", f"{TRAIN}.strategy": "deepspeed"},
        f"{ADAPTER}.quantize_base",
        "8bit can't be combined with train.strategy: deepspeed; set strategy to ddp or fsdp2",
    ),
    (
        {
            f"{ADAPTER}": {"quantize_base": "4bit", "use_dora": True},
            f"{TRAIN}.strategy": "fsdp2",
        },
        f"{ADAPTER}.quantize_base",
        "4bit with use_dora can't be combined with train.strategy: fsdp2; set strategy to ddp",
    ),
    (
        {
            "models.folder.new_tokens": ["<a>"],
            "runs.base.model": "folder",
            ADAPTER: {},
            f"{TRAIN}.strategy": "fsdp2",
        },
        ADAPTER,
        "can't be combined with train.strategy: fsdp2, because PEFT's layer for the rows of "
        "models.folder.new_tokens can't be sharded; set strategy to ddp, or train the embeddings "
        "whole, unless both share their weights (modules_to_save: [embed_tokens, lm_head])",
    ),
    (
        {f"{ADAPTER}.base_dtype": "bf16", f"{TRAIN}.precision": "fp32"},
        f"{ADAPTER}.base_dtype",
        "bf16 weights can't be combined with train.precision: fp32; change one of them",
    ),
    (
        {
            f"{ADAPTER}.quantize_base": "4bit",
            "runs.base.adapter": {},
            "runs.base.export.merge_adapter": False,
        },
        f"{ADAPTER}.quantize_base",
        "4bit can't be used here, because run base exports only its adapter, which can't be "
        "merged into quantized weights; set export.merge_adapter: true in run base",
    ),
    (
        {f"{ADAPTER}.create_new_adapter": False, "runs.base.adapter": {}},
        f"{ADAPTER}.create_new_adapter",
        "got false, and run base exports a merged model; set export.merge_adapter: false in run "
        "base",
    ),
    (
        {f"{ADAPTER}.create_new_adapter": False},
        f"{ADAPTER}.create_new_adapter",
        "got false, and run base has no adapter; set model to a run that has one, or remove it",
    ),
    (
        {f"{ADAPTER}.create_new_adapter": False, "runs.tuned.model": "folder"},
        f"{ADAPTER}.create_new_adapter",
        "got false, and the run starts from models.folder, which has no adapter; set "
        "models.folder.adapter, or model to {run: NAME}",
    ),
    (
        {
            f"{ADAPTER}.create_new_adapter": False,
            f"{ADAPTER}.rank": 4,
            "runs.base.adapter": {"rank": 16},
            "runs.base.export.merge_adapter": False,
        },
        f"{ADAPTER}.rank",
        "got 4, and the adapter of run base has 16; set it to 16",
    ),
    (
        {
            f"{ADAPTER}.create_new_adapter": False,
            "runs.base.adapter": {"init_lora_weights": "pissa"},
            "runs.base.export.merge_adapter": False,
        },
        f"{ADAPTER}.create_new_adapter",
        "got false, and the adapter of run base began from the base's weights (init_lora_weights: "
        "pissa), so that it is exported in another form; set export.merge_adapter: true in run "
        "base, and remove it",
    ),
    (
        {
            f"{ADAPTER}.create_new_adapter": False,
            f"{ADAPTER}.init_lora_weights": "gaussian",
            "runs.base.adapter": {},
            "runs.base.export.merge_adapter": False,
        },
        f"{ADAPTER}.init_lora_weights",
        "got gaussian, and create_new_adapter: false continues another adapter; remove one of them",
    ),
    (
        {
            f"{ADAPTER}.quantize_base": "4bit",
            "models.folder.adapter": "before",
            "runs.tuned.model": "folder",
        },
        f"{ADAPTER}.quantize_base",
        "4bit can't be used here, because models.folder.adapter can't be merged into quantized "
        "weights; set create_new_adapter: false to train that adapter, or merge it into its base",
    ),
    (
        {f"{TRAIN}.attention": "varlen", f"{TRAIN}.precision": "fp32"},
        f"{TRAIN}.attention",
        "varlen computes in bf16, so it can't be combined with train.precision: fp32; change one "
        "of them",
    ),
    (
        {f"{TRAIN}.attention": "flex", f"{TRAIN}.deterministic": True},
        f"{TRAIN}.deterministic",
        "PyTorch doesn't document that the backward pass of attention: flex is deterministic; set "
        "attention to auto, varlen or sdpa",
    ),
    (
        {f"{ADAPTER}.quantize_base": "4bit", f"{TRAIN}.deterministic": True},
        f"{TRAIN}.deterministic",
        "bitsandbytes, which quantize_base: 4bit needs, doesn't document that its kernels are "
        "deterministic; set one of them to its default",
    ),
    (
        {f"{TRAIN}.optimizer": "adamw_8bit", f"{TRAIN}.deterministic": True},
        f"{TRAIN}.deterministic",
        "bitsandbytes, which optimizer: adamw_8bit needs, doesn't document that its kernels are "
        "deterministic; set one of them to its default",
    ),
    (
        {f"{TRAIN}.optimizer": "muon", f"{TRAIN}.weights": "bf16"},
        f"{TRAIN}.weights",
        "weights in bf16 can't be combined with optimizer: muon, whose step is in fp32; change one "
        "of them",
    ),
    (
        {f"{TRAIN}.optimizer": "adafactor", f"{TRAIN}.strategy": "deepspeed"},
        f"{TRAIN}.optimizer",
        "adafactor can't be combined with strategy: deepspeed, which keeps the optimizer state in "
        "its own form; set strategy to ddp or fsdp2, or optimizer to adamw",
    ),
    (
        {f"{TRAIN}.optimizer": "adamw_8bit", f"{TRAIN}.strategy": "deepspeed"},
        f"{TRAIN}.optimizer",
        "adamw_8bit can't be combined with strategy: deepspeed, which keeps the optimizer state in "
        "its own form; set strategy to ddp or fsdp2, or optimizer to adamw",
    ),
    (
        {f"{TRAIN}.weights": "bf16", f"{TRAIN}.precision": "fp32"},
        f"{TRAIN}.weights",
        "weights in bf16 can't be combined with train.precision: fp32; change one of them",
    ),
    (
        {f"{TRAIN}.weights": "bf16", f"{TRAIN}.strategy": "deepspeed"},
        f"{TRAIN}.weights",
        "weights in bf16 can't be combined with strategy: deepspeed, which keeps fp32 copies of "
        "them; change one of them",
    ),
    (
        {f"{TRAIN}.weights": "bf16", ADAPTER: {"rank": 4}},
        f"{TRAIN}.weights",
        "weights in bf16 can't be combined with an adapter, whose few weights are trained in fp32; "
        "change one of them",
    ),
    (
        {f"{TRAIN}.strategy": "deepspeed", f"{TRAIN}.deterministic": True},
        f"{TRAIN}.deterministic",
        "strategy: deepspeed is not documented to be deterministic on GPUs; set strategy to ddp or "
        "fsdp2",
    ),
]


def test_keys_at_odds_with_one_another_cost_one_line() -> None:
    for values, path, problem in AT_ODDS:
        assert faults(values) == [f"{path}: {problem}"], values


def test_keys_that_go_together_are_no_fault() -> None:
    together: list[dict[str, Any]] = [
        {f"{TRAIN}.deepspeed": {"zero_stage": 3, "offload_parameters": True}},
        {f"{TRAIN}.deepspeed": {"zero_stage": 1, "offload_optimizer": True}},
        # The share of the decay concerns no other schedule.
        {f"{TRAIN}.decay_ratio": 1.0},
        {f"{TRAIN}": {"lr_scheduler_type": "wsd", "decay_ratio": 0.7, "warmup_ratio": 0.3}},
        {f"{TRAIN}.launcher": "torchrun"},
        {f"{ADAPTER}.quantize_base": "4bit"},
        {f"{ADAPTER}.quantize_base": "4bit", f"{TRAIN}.strategy": "fsdp2"},
        {f"{ADAPTER}": {"quantize_base": "8bit", "use_dora": True}},
        {f"{ADAPTER}.quantize_base": "8bit", f"{TRAIN}.deterministic": True},
        {f"{ADAPTER}": {}, f"{TRAIN}.strategy": "fsdp2"},
        *(
            {f"{ADAPTER}.base_dtype": "bf16", f"{TRAIN}.strategy": strategy}
            for strategy in ("ddp", "fsdp2", "deepspeed")
        ),
        # Merged, or an adapter on an adapter without 4 bits.
        {f"{ADAPTER}.quantize_base": "4bit", "runs.base.adapter": {}},
        {ADAPTER: {}, "runs.base.adapter": {}, "runs.base.export.merge_adapter": False},
        {f"{TRAIN}.deterministic": True, f"{TRAIN}.attention": "varlen"},
        {f"{ADAPTER}.target_modules": "all-linear"},
        {f"{ADAPTER}.target_modules": ["q_proj"]},
        {"runs.tuned.ray.storage_path": "/shared/s3:/state"},
        {"runs.tuned.ray.storage_path": "s3://bucket/state"},
        {
            "runs.tuned.ray.storage_path": "s3://bucket/state",
            "runs.tuned.data.loader": "stream",
            "runs.tuned.data.stream_from": "s3://bucket/rows",
        },
        *(
            {"runs.tuned.ray.address": address}
            for address in ("auto", "head:6379", "ray://head:10001", "[::1]:6379")
        ),
    ]
    for values in together:
        assert load_experiment(config_with(values)).runs["tuned"], values


def test_a_run_adds_to_the_adapter_of_the_defaults_or_does_without() -> None:
    values = {"defaults.adapter": {"rank": 4, "alpha": 2}, f"{ADAPTER}.alpha": 3}
    runs = load_experiment(config_with(values)).runs
    assert runs["base"].adapter == Adapter(rank=4, alpha=2)
    assert runs["tuned"].adapter == Adapter(rank=4, alpha=3)
    runs = load_experiment(config_with({"defaults.adapter.rank": 4, ADAPTER: None})).runs
    assert runs["base"].adapter == Adapter(rank=4)
    assert runs["tuned"].adapter is None


def test_a_best_step_needs_a_validation_split() -> None:
    without = {"datasets.functions.validation_share": 0, "datasets.functions.test_share": 0.1}
    for key, value in (("early_stopping_patience", 2), ("load_best_model_at_end", True)):
        (message,) = faults({**without, f"{TRAIN}.{key}": value})
        assert message.startswith("datasets.functions.validation_share: got 0, but run tuned "), key
