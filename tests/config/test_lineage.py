"""Runs that start from the best of a sweep."""

from typing import Any

from small_config import check_faults, config_with, experiment_with, faults

from moray.config import plan
from moray.config.load import load_experiment
from moray.config.schema.experiment import Experiment

SEEDS = {"runs.tuned.seeds": 2}
THIRD = {"model": {"best": "tuned"}, "dataset": "functions"}
MIXTURE = {"functions": 1, "notes": 2}
ADAPTER = {"runs.tuned.adapter": {"rank": 4}, "runs.tuned.export": {"merge_adapter": False}}


def with_third(values: dict[str, Any]) -> Experiment:
    return experiment_with({**SEEDS, "runs.third": THIRD, **values})


def test_a_run_starts_from_the_best_of_a_sweep() -> None:
    experiment = with_third({})
    assert plan.start_folder(experiment, "third") == "results/best/tuned/model"
    assert experiment.starts("third") == ["tuned-seed=0", "tuned-seed=1"]
    assert experiment.base_model("third") == "tiny"
    stores = [plan.store_name(experiment, run, "functions") for run in ("third", "tuned-seed=0")]
    assert stores[0] == stores[1]


def test_runs_of_a_chain_that_train_on_a_dataset_are_known() -> None:
    experiment = with_third({"runs.mixed.model": {"run": "third"}, "runs.mixed.dataset": MIXTURE})
    expected = {
        "base": {"modules": ["base"]},
        "tuned-seed=1": {"functions": ["tuned-seed=1"], "modules": ["base"]},
        "third": {"functions": ["third", "tuned"], "modules": ["base"]},
        "mixed": {
            "functions": ["mixed", "third", "tuned"],
            "modules": ["base"],
            "notes": ["mixed"],
        },
    }
    assert {run: experiment.trained_by(run) for run in expected} == expected
    # A run that trains on one dataset alone depends on what it did.
    assert "trained_by" not in plan.evaluate_config(experiment, "base")
    assert plan.evaluate_config(experiment, "third")["trained_by"] == expected["third"]


def test_adapters_of_a_sweep_need_what_each_of_them_starts_from() -> None:
    assert plan.start_dependencies(with_third({}), "third") == []
    folders = plan.start_dependencies(with_third(ADAPTER), "third")
    assert folders == ["results/runs/base/model"]


def test_a_choice_that_cannot_be_made_costs_one_line() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"runs.third.model": {"best": "tund"}},
            "runs.third.model.best: got tund, expected a name under runs; did you mean tuned?",
        ),
        (
            {"runs.third.model": {"best": "base"}},
            "runs.third.model.best: got base, which is one run, expected one with grid or seeds; "
            "write {run: base}",
        ),
        (
            {"runs.third.model": {"run": "tuned"}},
            "runs.third.model.run: tuned is a sweep of 2 runs; name one of them, "
            "such as tuned-seed=0, or write {best: tuned}",
        ),
        (
            {"runs.tuned.grid": {"dataset": ["functions", "modules"]}},
            "runs.third.model.best: the runs of tuned differ in their datasets and rows, so their "
            "validation losses can't be compared; write {run: NAME} instead, with the name of one "
            "of them",
        ),
        (
            {"runs.tuned.grid": {"data.block_size": [32, 64]}},
            "runs.third.model.best: the runs of tuned differ in their rows, so their validation ",
        ),
        (
            {"runs.tuned.grid": {"train.eval_rows": [32, 64]}},
            "runs.third.model.best: the runs of tuned differ in their train.eval_rows, so their ",
        ),
        (
            {"datasets.functions.validation_share": 0},
            "datasets.functions.validation_share: got 0, but the best of several runs on this ",
        ),
        ({"runs.third.model": {"best": 5}}, "runs.third.model.best: got 5, expected text; "),
        (
            {"runs.third.model": {"best": "tuned", "run": "base"}},
            "runs.third.model.run: unknown key; ",
        ),
    ]
    for values, start in wrong:
        check_faults({**SEEDS, "runs.third": THIRD, **values}, start)


def test_a_sweep_that_starts_from_its_own_best_is_a_cycle() -> None:
    (found,) = faults({**SEEDS, "runs.tuned.model": {"best": "tuned"}})
    assert found == (
        "runs.tuned.model.best: runs form a cycle (tuned-seed=0 <- tuned-seed=0); give one of "
        "them a base model from models"
    )
    through_another = {**SEEDS, "runs.tuned.model": {"run": "third"}, "runs.third": THIRD}
    assert [line.partition(":")[0] for line in faults(through_another)] == [
        "runs.tuned.model.run",
        "runs.third.model.best",
    ]


def test_a_sweep_is_no_longer_one_without_its_keys() -> None:
    config = config_with({**SEEDS, "runs.tuned.grid": None})
    config["runs"]["tuned"]["seeds"] = None
    assert set(load_experiment(config).runs) == {"base", "tuned"}
