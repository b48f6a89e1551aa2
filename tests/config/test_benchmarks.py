"""What a run's benchmarks depend on."""

from pathlib import Path

import pytest
from small_config import experiment_with

from moray.config.plan import benchmark_config, benchmark_files
from moray.errors import ConfigError, UserError

OWN = {"runs.tuned.benchmarks.include_path": "tasks", "runs.tuned.benchmarks.tasks": ["words"]}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_files_of_the_user_s_tasks_are_found_at_any_depth() -> None:
    for name in ("b.yaml", "data/a.jsonl", "__pycache__/own.pyc"):
        path = Path("tasks", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    experiment = experiment_with(OWN)
    assert benchmark_files(experiment, "tuned") == ["tasks/b.yaml", "tasks/data/a.jsonl"]
    assert benchmark_files(experiment, "base") == []


def test_a_missing_folder_costs_one_line() -> None:
    with pytest.raises(UserError) as error:
        benchmark_files(experiment_with(OWN), "tuned")
    assert str(error.value) == (
        "runs.tuned.benchmarks.include_path: got tasks, expected a folder with task files; check "
        "the path; it is relative to the working directory"
    )


def test_nodes_without_a_shared_folder_can_not_have_task_files() -> None:
    cluster = {"defaults.ray.address": "auto", "defaults.ray.storage_path": "s3://bucket/state"}
    Path("tasks").mkdir()
    with pytest.raises(UserError, match="need a folder that all nodes share"):
        benchmark_files(experiment_with(OWN | cluster), "tuned")


def test_intervals_are_those_of_the_evaluation_and_execution_changes_nothing() -> None:
    config = benchmark_config(experiment_with(OWN), "tuned")
    for key in ("num_workers", "batch_size"):
        other = experiment_with(OWN | {f"runs.tuned.benchmarks.{key}": 2})
        assert benchmark_config(other, "tuned") == config
    for key, value in {
        "benchmarks.limit": 3,
        "benchmarks.num_fewshot": 3,
        "evaluate.confidence": 0.5,
        "evaluate.bootstrap_samples": 3,
    }.items():
        other = experiment_with(OWN | {f"runs.tuned.{key}": value})
        assert benchmark_config(other, "tuned") != config


def test_images_have_none() -> None:
    images = {
        "datasets.digits": {"source": "digits"},
        "models.seen": {"source": "scratch-vision", "classes_of": "digits"},
        "runs.seen": {"model": "seen", "dataset": "digits", "benchmarks": {"tasks": ["words"]}},
    }
    with pytest.raises(ConfigError, match=r"runs\.seen\.benchmarks\.tasks: benchmarks are for"):
        experiment_with(images)
