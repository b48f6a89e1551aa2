"""The files beside the default config are overlays that pass its checks."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.utils import update_config

from moray.config import layout, plan
from moray.config.load import load_experiment
from moray.config.schema.experiment import Experiment

FOLDER = Path(__file__).parents[2] / "config"
OVERLAYS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "config.yaml")


def experiment_of(*overlays: str) -> Experiment:
    """The default config with overlays, merged as the workflow does."""
    config: dict[str, Any] = {}
    for name in ("config.yaml", *overlays):
        update_config(config, yaml.safe_load((FOLDER / name).read_text()))
    return load_experiment(config)


def test_the_default_is_offline_and_chains_two_runs() -> None:
    experiment = experiment_of()
    assert {dataset.source for dataset in experiment.datasets.values()} == {"python-stdlib"}
    assert experiment.base_model("tuned") == "tiny"
    assert list(experiment.runs) == ["base", "tuned"]


ENGINES = {"deepspeed.yaml", "fsdp2.yaml", "torchrun.yaml"}


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_another_engine_changes_no_result(name: str) -> None:
    default = experiment_of()
    experiment = experiment_of(name)
    for run in default.runs:
        assert plan.train_config(experiment, run) == plan.train_config(default, run)
        otherwise = layout.train_execution(experiment, run, cores=2)
        assert otherwise != layout.train_execution(default, run, cores=2)


def test_longer_trains_the_runs_of_the_default_for_more_steps() -> None:
    default = experiment_of()
    experiment = experiment_of("longer.yaml")
    assert list(experiment.runs) == list(default.runs)
    for name, run in default.runs.items():
        longer = experiment.runs[name].train
        steps = run.train.max_steps
        assert longer.max_steps is not None
        assert steps is not None
        assert longer.max_steps > 2 * steps
        same = longer.model_copy(update={"max_steps": steps, "eval_steps": run.train.eval_steps})
        assert same == run.train


def test_adapters_change_tuned_alone() -> None:
    default = experiment_of()
    experiment = experiment_of("lora.yaml")
    assert plan.train_config(experiment, "base") == plan.train_config(default, "base")
    assert plan.train_config(experiment, "tuned")["adapter"]["rank"] == 16


@pytest.mark.parametrize(("task", "run"), [("preference", "preferred"), ("kto", "judged")])
def test_preference_adds_a_run_to_the_chain(task: str, run: str) -> None:
    default = experiment_of()
    experiment = experiment_of(f"{task}.yaml")
    assert list(experiment.runs) == ["base", "tuned", run]
    assert plan.start_folder(experiment, run) == "results/runs/tuned/model"
    assert plan.task(experiment, run) == task
    for run in default.runs:
        assert plan.train_config(experiment, run) == plan.train_config(default, run)


def test_a_student_of_a_third_of_the_size_has_the_second_run_as_its_teacher() -> None:
    experiment, default = experiment_of("distillation.yaml"), experiment_of()
    assert list(experiment.runs) == ["base", "tuned", "student"]
    assert experiment.teachers("student") == ["tuned"]
    for run in default.runs:
        assert plan.train_config(experiment, run) == plan.train_config(default, run)


OF_DEFAULT = ENGINES | {
    "longer.yaml",
    "lora.yaml",
    "preference.yaml",
    "distillation.yaml",
    "kto.yaml",
}


@pytest.mark.parametrize("name", sorted({*OVERLAYS} - OF_DEFAULT))
def test_an_overlay_has_runs_of_its_own(name: str) -> None:
    experiment = experiment_of(name)
    assert experiment.runs
    assert set(experiment.runs).isdisjoint({"base", "tuned"})
