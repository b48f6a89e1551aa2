import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_config import config_with, experiment_with

from moray.config import layout, plan, user_files
from moray.config.load import load_experiment
from moray.config.schema.base import execution_keys, result_keys
from moray.config.schema.experiment import Experiment
from moray.config.schema.sections import Data, Evaluate, Generate, Ray
from moray.config.schema.train import Adapter, Train


def store_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """That of a run's only dataset."""
    return plan.store_config(experiment, run, *experiment.runs[run].datasets)


def store_name(experiment: Experiment, run: str) -> str:
    """That of a run's only dataset."""
    return plan.store_name(experiment, run, *experiment.runs[run].datasets)


ConfigOf = Callable[[Experiment, str], dict[str, Any]]
CONFIGS: list[tuple[ConfigOf, str]] = [
    (plan.dataset_config, "modules"),
    (plan.dataset_config, "notes"),
    (plan.model_config, "tiny"),
    (plan.model_config, "folder"),
    (store_config, "tuned"),
    (plan.train_config, "tuned"),
    (plan.export_config, "tuned"),
    (plan.evaluate_config, "tuned"),
    (plan.generate_config, "tuned"),
]


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for entry in value.values():
            yield from mappings(entry)


def test_what_a_stage_depends_on_prints_alike_however_it_was_written() -> None:
    written: Any = json.loads(json.dumps(config_with({}), sort_keys=True))
    for config_of, name in CONFIGS:
        config = config_of(experiment_with({}), name)
        assert config, (config_of, name)
        assert all(list(mapping) == sorted(mapping) for mapping in mappings(config)), config
        assert json.loads(json.dumps(config)) == config
        assert repr(config_of(load_experiment(written), name)) == repr(config)


SECTIONS = {
    "data": Data(),
    "train": Train(),
    "ray": Ray(),
    "evaluate": Evaluate(),
    "generate": Generate(),
}
EXECUTION = {
    f"{section}.{key}" for section, model in SECTIONS.items() for key in execution_keys(model)
}


def test_the_keys_that_only_say_how_a_run_is_executed_are_known() -> None:
    assert {"train.micro_batch_size", "ray.num_workers", "evaluate.batch_size"} <= EXECUTION
    assert {"data.loader", "data.stream_from"} <= EXECUTION
    assert {"train.global_batch_size", "data.tokenize"}.isdisjoint(EXECUTION)
    assert {f"ray.{key}" for key in Ray.model_fields} <= EXECUTION


# Another value for each of them.
EXECUTED_OTHERWISE: dict[str, Any] = {
    "data.loader": "stream",
    "data.stream_from": "s3://bucket/folder",
    "train.strategy": "fsdp2",
    "train.fsdp2": {"cpu_offload": True, "reshard_after_forward": False, "shard_size": 1},
    "train.deepspeed": {"offload_optimizer": True, "offload_parameters": True, "zero_stage": 3},
    "train.micro_batch_size": 1,
    "train.compile": True,
    "train.attention": "eager",
    "train.runtime": 60,
    "train.mem_mb": 8000,
    "train.stall_timeout": 60.0,
    "train.gradient_checkpointing": True,
    "train.save_steps": 7,
    "train.save_total_limit": 5,
    "train.profile": {"steps": 2},
    "ray.address": "auto",
    "ray.num_workers": 4,
    "ray.use_gpu": False,
    "ray.resources_per_worker": {"CPU": 3},
    "ray.max_failures": 0,
    "ray.network_interface": "eth0",
    "ray.start_timeout": 60.0,
    "ray.upload_package": True,
    "ray.storage_path": "elsewhere",
    "ray.include_dashboard": True,
    "evaluate.batch_size": 3,
    "evaluate.num_workers": 2,
    "generate.batch_size": 3,
    "generate.num_workers": 2,
}
# It doesn't go with `data.loader: stream`.
BY_TORCHRUN = {"train.launcher": "torchrun"}


@pytest.mark.parametrize("executed", [EXECUTED_OTHERWISE, BY_TORCHRUN])
def test_changing_how_a_run_is_executed_changes_nothing_that_a_stage_depends_on(
    executed: dict[str, Any],
) -> None:
    otherwise = {f"defaults.{key}": value for key, value in executed.items()}
    before, after = experiment_with({}), experiment_with(otherwise)
    assert before != after
    assert store_name(before, "tuned") == store_name(after, "tuned")
    for config_of, name in CONFIGS:
        assert config_of(before, name) == config_of(after, name), (config_of, name)


def test_another_value_stands_for_each_of_them() -> None:
    assert EXECUTED_OTHERWISE.keys() | BY_TORCHRUN.keys() == EXECUTION
    keys = {section: execution_keys(model) for section, model in SECTIONS.items()}
    for path, value in (EXECUTED_OTHERWISE | BY_TORCHRUN).items():
        section, key = path.split(".")
        assert keys[section][key] != value


@pytest.mark.parametrize("executed", [EXECUTED_OTHERWISE, BY_TORCHRUN])
def test_how_a_run_is_executed_is_passed_to_its_stages(executed: dict[str, Any]) -> None:
    otherwise = {f"runs.tuned.{key}": value for key, value in executed.items()}
    experiment = experiment_with(otherwise)
    keys = layout.train_execution(experiment, "tuned", cores=2)
    stages: list[layout.Stage] = ["evaluate", "generate"]
    for stage in stages:
        keys[stage] = layout.evaluation_execution(experiment, "tuned", stage, cores=2)[stage]
    for path, value in executed.items():
        section, key = path.split(".")
        assert keys[section][key] == value


@pytest.mark.parametrize(
    ("gpus", "train", "evaluate"),
    [("", (8, 0), (8, 0)), ("0", (1, 1), (1, 1)), ("0,1,2,3", (4, 4), (4, 4))],
)
def test_rules_reserve_a_gpu_and_a_core_for_each_worker_and_cores_without_gpus(
    gpus: str,
    train: tuple[int, int],
    evaluate: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moray.machine.cores", lambda: 16)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    experiment = experiment_with({})
    expected: dict[layout.Stage, tuple[int, int]] = {
        "train": train,
        "evaluate": evaluate,
        "generate": evaluate,
    }
    for stage, reserved in expected.items():
        cores = layout.threads(experiment, "tuned", stage, cores=None)
        assert (cores, layout.gpus(experiment, "tuned", stage)) == reserved


def test_a_checkpoint_to_continue_from_is_part_of_what_a_run_is() -> None:
    """Without it, the config is that of versions in which it changed no result."""
    plain = plan.train_config(experiment_with({}), "tuned")
    given = {"runs.tuned.train.resume_from_checkpoint": "results/state/a/b/checkpoints/step-8"}
    continued = plan.train_config(experiment_with(given), "tuned")
    assert continued["train"].pop("resume_from_checkpoint") == next(iter(given.values()))
    assert continued == plain


def test_training_depends_on_its_optimisation_and_the_adapter_if_there_is_one() -> None:
    whole = plan.train_config(experiment_with({}), "tuned")
    assert whole["adapter"] is None
    assert whole["train"] == result_keys(Train(learning_rate=1e-3, max_steps=20))
    adapted = experiment_with({"defaults.adapter.rank": 4, "runs.tuned.adapter.alpha": 2})
    config = plan.train_config(adapted, "tuned")
    assert Adapter(**config["adapter"]) == Adapter(rank=4, alpha=2)
    assert plan.train_config(adapted, "base")["adapter"]["alpha"] == 16
    without = experiment_with({"defaults.adapter.rank": 4, "runs.tuned.adapter": None})
    assert plan.train_config(without, "tuned") == whole


def test_changing_a_result_changes_what_its_stage_depends_on() -> None:
    changes: list[tuple[str, object, ConfigOf, str]] = [
        ("datasets.modules.validation_share", 0.2, plan.dataset_config, "modules"),
        ("datasets.notes.split_by", "tail", plan.dataset_config, "notes"),
        ("datasets.notes.columns", {"text": "body"}, plan.dataset_config, "notes"),
        ("datasets.notes.path", {"train": "a", "test": "b"}, plan.dataset_config, "notes"),
        ("models.tiny.tokenizer.vocab_size", 300, plan.model_config, "tiny"),
        ("models.tiny.seed", 1, plan.model_config, "tiny"),
        ("defaults.data.block_size", 32, store_config, "tuned"),
        ("defaults.data.long_documents", "drop", store_config, "tuned"),
        ("defaults.data.packing", False, store_config, "tuned"),
        (
            "defaults.data",
            {"tokenize": "on-the-fly", "loader": "stream"},
            store_config,
            "tuned",
        ),
        ("datasets.functions.format", "text", store_config, "tuned"),
        ("runs.tuned.train.learning_rate", 1, plan.train_config, "tuned"),
        ("defaults.train.global_batch_size", 8, plan.train_config, "tuned"),
        ("runs.tuned.train.optimizer", "adamw_8bit", plan.train_config, "tuned"),
        ("runs.tuned.train.weights", "bf16", plan.train_config, "tuned"),
        ("runs.tuned.train.precision", "fp32", plan.train_config, "tuned"),
        ("runs.tuned.train.early_stopping_patience", 2, plan.train_config, "tuned"),
        ("runs.tuned.train.load_best_model_at_end", True, plan.train_config, "tuned"),
        ("runs.tuned.train.decay_ratio", 0.5, plan.train_config, "tuned"),
        ("runs.tuned.adapter", {}, plan.train_config, "tuned"),
        ("runs.tuned.model", "tiny", plan.export_config, "tuned"),
        ("defaults.evaluate.max_documents", 5, plan.evaluate_config, "tuned"),
        ("runs.tuned.export.dtype", "bf16", plan.export_config, "tuned"),
        ("defaults.export.merge_adapter", False, plan.export_config, "tuned"),
        ("runs.tuned.train.deterministic", True, plan.train_config, "tuned"),
        ("runs.tuned.adapter", {"base_dtype": "bf16"}, plan.train_config, "tuned"),
        ("defaults.generate.seed", 5, plan.generate_config, "tuned"),
    ]
    before = experiment_with({})
    for path, value, config_of, name in changes:
        after = experiment_with({path: value})
        assert config_of(before, name) != config_of(after, name), path


def test_rows_of_the_standard_library_depend_on_the_version_of_python() -> None:
    experiment = experiment_with({})
    assert plan.dataset_config(experiment, "modules")["state"].keys() == {"python"}
    assert "state" not in plan.dataset_config(experiment, "notes")


@pytest.mark.parametrize(
    ("values", "shared"),
    [
        ({}, True),
        # What concerns the training alone is the run's own affair.
        ({"runs.again.train.seed": 5, "runs.again.ray.num_workers": 4}, True),
        ({"runs.again.model": {"run": "base"}}, True),
        ({"runs.again.data.block_size": 32}, False),
        ({"runs.again.dataset": "functions"}, False),
        ({"runs.again.model": "folder"}, False),
    ],
)
def test_runs_share_a_token_store_if_their_tokens_are_the_same(
    values: dict[str, Any], shared: bool
) -> None:
    again = {"model": "tiny", "dataset": "modules"}
    experiment = experiment_with({"runs.again": again} | values)
    names = {store_name(experiment, run) for run in ("base", "again")}
    assert (len(names) == 1) is shared


def test_a_store_is_named_after_its_dataset_and_its_model() -> None:
    assert store_name(experiment_with({}), "tuned").startswith("functions-tiny-")


def test_a_run_starts_from_a_base_or_from_what_another_run_made() -> None:
    experiment = experiment_with({})
    assert plan.start_folder(experiment, "base") == "results/models/tiny"
    assert plan.start_folder(experiment, "tuned") == "results/runs/base/model"


@pytest.mark.parametrize(
    ("ray", "threads"),
    [
        ({"num_workers": 2, "resources_per_worker": {"CPU": 1}}, 2),
        ({"num_workers": 4, "resources_per_worker": {"CPU": 2}}, 8),
        ({"num_workers": 1, "resources_per_worker": {"CPU": 0.5}}, 1),
        ({"num_workers": 2, "resources_per_worker": {"GPU": 1}}, 2),
    ],
)
def test_a_run_takes_the_cpus_of_all_its_workers(ray: dict[str, Any], threads: int) -> None:
    experiment = experiment_with({"runs.base.ray": ray})
    assert layout.threads(experiment, "base", "train", cores=2) == threads


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (5, 2), (8, 4), (32, 8)])
def test_evaluations_of_several_runs_leave_room_for_each_other(cores: int, threads: int) -> None:
    experiment = experiment_with({})
    assert layout.threads(experiment, "tuned", "evaluate", cores) == threads
    alone = experiment_with({"runs.tuned": None})
    assert layout.threads(alone, "base", "evaluate", cores) == 8


def test_the_workers_of_an_evaluation_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moray.machine.cores", lambda: 64)
    experiment = experiment_with({"runs.tuned.evaluate": {"num_workers": 2}})
    assert layout.threads(experiment, "tuned", "evaluate", cores=64) == 8
    ray = layout.evaluation_execution(experiment, "tuned", "evaluate", cores=8)["ray"]
    assert (ray["num_workers"], ray["resources_per_worker"]) == (2, {"CPU": 4.0})


BASED = {"model": {"run": "base"}, "dataset": "functions"}


@pytest.mark.parametrize(
    ("runs", "cores", "threads"),
    [
        # The two runs of a chain train one after the other.
        ({}, 1, {"base": 1, "tuned": 1}),
        ({}, 8, {"base": 8, "tuned": 8}),
        # Two workers, by which four rows can be divided.
        ({}, 33, {"base": 32, "tuned": 32}),
        ({}, 64, {"base": 64, "tuned": 64}),
        ({"other": BASED}, 64, {"base": 64, "tuned": 32, "other": 32}),
        # Beside a chain of three, which uses its cores one run after the other.
        (
            {"last": {**BASED, "model": {"run": "tuned"}}, "alone": {**BASED, "model": "tiny"}},
            8,
            {"base": 4, "tuned": 4, "last": 4, "alone": 4},
        ),
        ({f"r{number}": BASED for number in range(19)}, 64, {"base": 64, "tuned": 3, "r7": 3}),
        ({f"r{number}": BASED for number in range(19)}, 8, {"base": 8, "tuned": 1, "r7": 1}),
    ],
)
def test_runs_that_do_not_build_on_each_other_share_the_cores(
    runs: dict[str, Any],
    cores: int,
    threads: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("moray.machine.cores", lambda: 64)
    rows = {"defaults.train.global_batch_size": 4}
    experiment = experiment_with({**rows, **{f"runs.{name}": run for name, run in runs.items()}})
    found = {run: layout.threads(experiment, run, "train", cores) for run in threads}
    assert found == threads


def test_the_runs_of_a_sweep_share_the_cores_and_what_starts_from_its_best_has_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("moray.machine.cores", lambda: 8)
    experiment = experiment_with(
        {
            "runs.base.seeds": [1, 2, 3, 4],
            "runs.tuned.model": {"best": "base"},
            "runs.tuned.train": {"max_steps": 20},
        }
    )
    found = {run: layout.threads(experiment, run, "train", 8) for run in experiment.runs}
    assert found == {f"base-seed={number}": 2 for number in (1, 2, 3, 4)} | {"tuned": 8}


def test_workers_on_a_cluster_take_no_cores_and_gpus_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    ray = {"address": "head:6379", "num_workers": 4}
    there = experiment_with({"runs.base.ray": ray})
    stages: list[layout.Stage] = ["train", "evaluate", "generate"]
    for stage in stages:
        assert layout.threads(there, "base", stage, cores=8) == 1
        assert layout.gpus(there, "base", stage) == 0
    # Which knows no cluster.
    here = experiment_with({"runs.base.ray": ray, "runs.base.train.launcher": "torchrun"})
    assert layout.threads(here, "base", "train", cores=8) == 4
    assert layout.gpus(here, "base", "train") == 4


def test_a_model_from_scratch_depends_on_the_dataset_of_its_tokenizer() -> None:
    files = user_files.model_files(experiment_with({}), "tiny")
    assert files == ["results/datasets/modules/dataset.json"]


def test_a_seed_is_part_of_an_existing_model_whose_weights_are_drawn() -> None:
    drawn = {"models.folder.random_weights": True, "models.folder.seed": 3}
    assert plan.model_config(experiment_with(drawn), "folder")["seed"] == 3
    assert "seed" not in plan.model_config(experiment_with({"models.folder.seed": 3}), "folder")


def test_a_start_that_is_an_adapter_alone_needs_the_start_of_its_own_run() -> None:
    alone = {"adapter": {}, "export": {"merge_adapter": False}}
    chain = {
        "runs.second": {"model": {"run": "base"}, "dataset": "functions", **alone},
        "runs.third": {"model": {"run": "second"}, "dataset": "functions"},
    }
    merged = experiment_with({"runs.base.adapter": {}, **chain})
    assert plan.start_dependencies(merged, "second") == []
    assert plan.start_dependencies(merged, "third") == ["results/runs/base/model"]
    values = {f"runs.base.{key}": value for key, value in alone.items()}
    adapters = experiment_with(values | chain)
    assert plan.start_dependencies(adapters, "base") == []
    assert plan.start_dependencies(adapters, "second") == ["results/models/tiny"]
    assert plan.start_dependencies(adapters, "third") == [
        "results/runs/base/model",
        "results/models/tiny",
    ]
    # Without an adapter there is nothing to leave unmerged.
    plain = experiment_with({"defaults.export.merge_adapter": False})
    assert plan.start_dependencies(plain, "tuned") == []
