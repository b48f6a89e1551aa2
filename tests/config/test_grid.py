from typing import Any

import pytest
from small_config import check_faults, config_with, experiment_with, faults

from moray.config.load import load_experiment
from moray.config.schema.start import RunRef
from moray.errors import ConfigError

RATES = {"train.learning_rate": ["1e-4", 3e-4], "train.weight_decay": [0, 0.1]}
LONG = "results/state/" + "x" * 90


def runs_with(values: dict[str, Any]) -> set[str]:
    """The runs besides `base`."""
    return set(experiment_with(values).runs) - {"base"}


def test_a_grid_makes_a_run_for_each_combination_with_its_values() -> None:
    experiment = experiment_with({"runs.tuned.grid": RATES})
    found = {
        name: (run.train.learning_rate, run.train.weight_decay, run.train.max_steps, run.dataset)
        for name, run in experiment.runs.items()
        if name != "base"
    }
    assert found == {
        "tuned-learning_rate=0.0001-weight_decay=0": (1e-4, 0, 20, "functions"),
        "tuned-learning_rate=0.0001-weight_decay=0.1": (1e-4, 0.1, 20, "functions"),
        "tuned-learning_rate=0.0003-weight_decay=0": (3e-4, 0, 20, "functions"),
        "tuned-learning_rate=0.0003-weight_decay=0.1": (3e-4, 0.1, 20, "functions"),
    }


@pytest.mark.parametrize(("seeds", "expected"), [(3, [0, 1, 2]), ([7, 5], [7, 5])])
def test_seeds_make_a_run_for_each_seed(seeds: object, expected: list[int]) -> None:
    runs = experiment_with({"runs.tuned.seeds": seeds}).runs
    assert {name: run.train.seed for name, run in runs.items() if name != "base"} == {
        f"tuned-seed={seed}": seed for seed in expected
    }


@pytest.mark.parametrize(
    ("base", "starts"),
    [
        ({"seeds": 2}, {"tuned-seed=0": "base-seed=0", "tuned-seed=1": "base-seed=1"}),
        ({"seeds": [1, 0]}, {"tuned-seed=0": "base-seed=0", "tuned-seed=1": "base-seed=1"}),
        ({}, {"tuned-seed=0": "base", "tuned-seed=1": "base"}),
    ],
)
def test_a_run_with_seeds_starts_from_the_run_with_its_seed(
    base: dict[str, Any], starts: dict[str, str]
) -> None:
    written = {f"runs.base.{key}": value for key, value in base.items()}
    runs = experiment_with({**written, "runs.tuned.seeds": 2}).runs
    found = {name: run.model for name, run in runs.items() if name.startswith("tuned")}
    assert found == {name: RunRef(run=start) for name, start in starts.items()}


@pytest.mark.parametrize("base", [{"seeds": 1}, {"seeds": 2, "grid": {"train.max_steps": [3]}}])
def test_a_run_whose_seed_its_start_does_not_have_is_refused(base: dict[str, Any]) -> None:
    written = {f"runs.base.{key}": value for key, value in base.items()}
    with pytest.raises(ConfigError, match=r"^runs\.tuned\.model\.run: base is a sweep of"):
        experiment_with({**written, "runs.tuned.seeds": 2})


def test_names_stay_when_values_are_added_or_written_differently() -> None:
    before = runs_with({"runs.tuned.grid": RATES, "runs.tuned.seeds": 2})
    turned = {"train.weight_decay": [0.1, 0.0], "train.learning_rate": [3e-4, 1e-4, "1e-3"]}
    after = runs_with({"runs.tuned.grid": turned, "runs.tuned.seeds": [1, 0]})
    assert len(before) == 8
    assert before < after
    assert all("learning_rate=0.001-" in name for name in after - before)


def test_values_of_any_kind_are_in_names() -> None:
    grids: list[tuple[dict[str, Any], set[str]]] = [
        (
            {"adapter": [None, {"rank": 8, "alpha": 16}]},
            {"tuned-adapter=null", "tuned-adapter.alpha=16-adapter.rank=8"},
        ),
        (
            {"dataset": ["functions", {"functions": 0.7, "modules": 0.3}]},
            {"tuned-dataset=functions", "tuned-dataset.functions=0.7-dataset.modules=0.3"},
        ),
        ({"model": ["tiny", {"run": "base"}]}, {"tuned-model=tiny", "tuned-model.run=base"}),
        # The last part alone would be the same twice.
        (
            {"evaluate.num_workers": [1], "generate.num_workers": [2]},
            {"tuned-evaluate.num_workers=1-generate.num_workers=2"},
        ),
        # One of `seeds` would be named the same.
        ({"generate.seed": [1]}, {"tuned-generate.seed=1"}),
        ({"train.compile": [False]}, {"tuned-compile=false"}),
        (
            {"adapter.target_modules": [["q_proj", "v_proj"]]},
            {"tuned-target_modules=q_proj+v_proj"},
        ),
        ({"ray.storage_path": ["/a/b c"]}, {"tuned-storage_path=_a_b_c"}),
    ]
    for grid, names in grids:
        assert runs_with({"runs.tuned.grid": grid}) == names


def test_a_value_overrides_the_run_and_the_defaults_key_by_key() -> None:
    values = {
        "defaults.ray.resources_per_worker": {"CPU": 2, "disk": 1},
        "runs.tuned.grid": {"ray.resources_per_worker": [{"CPU": 1}]},
    }
    experiment = experiment_with(values)
    (run,) = (run for name, run in experiment.runs.items() if name != "base")
    assert run.ray.resources_per_worker == {"CPU": 1, "disk": 1}


def test_an_experiment_knows_the_runs_of_each_sweep() -> None:
    experiment = experiment_with({"runs.tuned.grid": RATES, "runs.tuned.seeds": 2})
    (sweep,) = experiment.sweeps.values()
    assert set(sweep) == set(experiment.runs) - {"base"}
    member = sweep["tuned-learning_rate=0.0003-weight_decay=0.1-seed=1"]
    assert member.setting == "tuned-learning_rate=0.0003-weight_decay=0.1"
    assert member.values == {"train.learning_rate": 3e-4, "train.weight_decay": 0.1}
    assert member.seed == 1


def test_another_run_can_start_from_one_of_a_sweep() -> None:
    third = {"model": {"run": "tuned-seed=1"}, "dataset": "functions"}
    experiment = experiment_with({"runs.tuned.seeds": 2, "runs.third": third})
    assert experiment.base_model("third") == "tiny"


def test_a_fault_is_reported_where_it_is_written() -> None:
    wrong: list[tuple[str, Any, list[str]]] = [
        (
            "grid",
            {"train.learning_rate": [-1, 1e-4, "fast"]},
            [
                "runs.tuned.grid.train.learning_rate.0: got -1, expected more than 0; ",
                "runs.tuned.grid.train.learning_rate.2: got 'fast', expected a number; ",
            ],
        ),
        (
            "grid",
            {"train.learnig_rate": [1e-4, 1e-3]},
            ["runs.tuned.grid.train.learnig_rate: unknown key; did you mean learning_rate?"],
        ),
        (
            "grid",
            {"train.learning_rate.peak": [1e-4]},
            ["runs.tuned.grid.train.learning_rate.peak: got a mapping, expected a number; "],
        ),
        (
            "grid",
            {"adapter": [None, {"rank": 0}]},
            ["runs.tuned.grid.adapter.1.rank: got 0, expected more than 0; "],
        ),
        # Of several sections.
        (
            "grid",
            {"model": ["tiny", {"run": "bse"}]},
            ["runs.tuned.grid.model.1.run: got bse, expected a name under runs; did you mean base"],
        ),
        (
            "grid",
            {"train.learning_rate": ["1e-4", 0.0001]},
            ["runs.tuned.grid: makes two runs named tuned-learning_rate=0.0001; remove one "],
        ),
        (
            "grid",
            {"train.resume_from_checkpoint": [LONG]},
            ["runs.tuned.grid: makes a run named tuned-resume_from_checkpoint=results_state_xxx"],
        ),
        ("grid", {"train.learning_rate": 1}, ["runs.tuned.grid.train.learning_rate: got 1, exp"]),
        ("grid", {"train.learning_rate": []}, ["runs.tuned.grid.train.learning_rate: got [], exp"]),
        ("grid", {"seeds": [2, 3]}, ["runs.tuned.grid.seeds: a grid can't be in a grid; remove "]),
        (
            "grid",
            {"adapter": [{"rank": 8}], "adapter.alpha": [1, 2]},
            ["runs.tuned.grid.adapter.alpha: adapter is in the grid too; remove one of them"],
        ),
        ("seeds", 0, ["runs.tuned.seeds: got 0, expected more than 0 or a list; "]),
        ("seeds", [0, -1], ["runs.tuned.seeds.1: got -1, expected at least 0; "]),
        ("seeds", [3, 3], ["runs.tuned.seeds: makes two runs named tuned-seed=3; remove one "]),
    ]
    for key, value, starts in wrong:
        check_faults({f"runs.tuned.{key}": value}, *starts)


def test_a_fault_of_all_runs_of_a_sweep_is_reported_once() -> None:
    rates = {"train.learning_rate": [1e-4, 1e-3]}
    (line,) = faults({"runs.tuned.grid": rates, "runs.tuned.seeds": 3, "runs.tuned.dataset": "no"})
    assert line.startswith("runs.tuned.dataset: got no, expected a name under datasets; ")


def test_a_seed_from_two_places_and_a_name_that_is_taken_are_refused() -> None:
    twice = {"runs.tuned.grid": {"train.seed": [0, 1]}, "runs.tuned.seeds": 2}
    assert faults(twice) == ["runs.tuned.seeds: train.seed is in the grid too; remove one of them"]
    other = {"model": "tiny", "dataset": "functions"}
    config = config_with({"runs.tuned.seeds": 1})
    config["runs"]["tuned-seed=0"] = other
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    assert str(caught.value) == (
        "runs.tuned.seeds: makes a run named tuned-seed=0, which another entry makes too; "
        "rename one of them"
    )


def test_a_name_may_not_be_longer_than_a_hundred_characters() -> None:
    name = "x" * 79
    other = {"model": "tiny", "dataset": "functions"}
    fits = {f"runs.{name}": other | {"grid": {"train.learning_rate": [1e-4]}}}
    assert max(map(len, runs_with(fits))) == 100
    (line,) = faults({f"runs.{name}": other | {"grid": {"train.learning_rate": [1e-5, 1.5e-4]}}})
    assert "which has 101 characters, expected at most 100; shorten the name of the sweep" in line
