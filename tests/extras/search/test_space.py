from typing import Any

import pytest
from small_config import check_faults, experiment_with, faults

from moray.config.plan import train_config
from moray.config.schema.experiment import Experiment
from moray.extras.search.space import candidates, search_config

RATE = {"train.learning_rate": {"low": "1e-4", "high": 1e-2, "log": True}}
SPACE = "runs.tuned.search.space"


def searching(space: Any, **values: Any) -> dict[str, Any]:
    return {"runs.tuned.search": {"trials": 8, "space": space}, **values}


def config_of(space: Any, **values: Any) -> dict[str, Any]:
    return search_config(experiment_with(searching(space, **values)), "tuned")


def test_a_search_changes_nothing_of_its_run() -> None:
    with_it, without = experiment_with(searching(RATE)), experiment_with({})
    assert train_config(with_it, "tuned") == train_config(without, "tuned")
    assert list(with_it.runs) == list(without.runs)


def test_a_search_depends_on_its_run_but_for_the_keys_that_it_sets() -> None:
    assert config_of(RATE) == config_of(RATE, **{"runs.tuned.train.learning_rate": 0.5})
    assert config_of(RATE) != config_of(RATE, **{"runs.tuned.train.weight_decay": 0.5})
    assert "learning_rate" not in config_of(RATE)["train"]
    for change in ({"trials": 9}, {"seed": 1}, {"space": {"train.learning_rate": [1e-3]}}):
        search = {"trials": 8, "space": RATE, **change}
        other = search_config(experiment_with({"runs.tuned.search": search}), "tuned")
        assert other != config_of(RATE)


def test_values_have_one_form_however_they_are_written() -> None:
    written = config_of(
        {
            "train.weight_decay": [0, "0.01", 0.1],
            "adapter.rank": {"low": 4, "high": 16.0},
            "train.early_stopping_patience": [None, 3],
            **RATE,
        }
    )
    assert written["search"]["space"] == {
        "adapter.rank": {"high": 16, "integer": True, "log": False, "low": 4},
        "train.early_stopping_patience": {"choices": [None, 3]},
        "train.learning_rate": {"high": 1e-2, "integer": False, "log": True, "low": 1e-4},
        "train.weight_decay": {"choices": [0.0, 0.01, 0.1]},
    }
    assert isinstance(written["search"]["space"]["adapter.rank"]["high"], int)
    # Without an adapter of its own, the run has no section to take the rank from.
    assert written["adapter"] is None


def test_an_image_run_can_be_searched_for_its_augmentation() -> None:
    images = {
        "datasets.digits": {"source": "digits"},
        "models.seen": {"source": "scratch-vision", "classes_of": "digits"},
        "runs.seen": {
            "model": "seen",
            "dataset": "digits",
            "search": {"trials": 2, "space": {"data.augmentation.shift": {"low": 0, "high": 3}}},
        },
    }
    config = search_config(experiment_with(images), "seen")
    assert config["augmentation"] == {"crop": 0.0, "flip": False}
    assert config["search"]["space"]["data.augmentation.shift"]["integer"] is True


def test_candidates_are_the_values_that_a_run_is_checked_with() -> None:
    space = {"train.global_batch_size": {"low": 2, "high": 8}, "train.weight_decay": [0, 0.5]}
    run = experiment_with(searching(space)).runs["tuned"]
    found = [(one.train.global_batch_size, one.train.weight_decay) for one in candidates(run)]
    own = run.train.weight_decay
    assert found == [(2, own), (8, own), (3, own), (16, 0), (16, 0.5)]


def test_a_fault_of_a_space_is_reported_where_it_is_written() -> None:
    wrong: list[tuple[Any, list[str]]] = [
        ({}, [f"{SPACE}: got a mapping, expected at least 1 entry; "]),
        (
            {"train.learnig_rate": [1, 2]},
            [f"{SPACE}.train.learnig_rate: unknown key; did you mean learning_rate?"],
        ),
        (
            {"trian.learning_rate": [1]},
            [f"{SPACE}.trian.learning_rate: unknown key; did you mean train?"],
        ),
        (
            {"train.learning_rate": [1e-3, -1, "fast"]},
            [
                f"{SPACE}.train.learning_rate.1: got -1, expected more than 0; ",
                f"{SPACE}.train.learning_rate.2: got 'fast', expected a number; ",
            ],
        ),
        (
            {"train.warmup_ratio": {"low": -0.1, "high": 1}},
            [
                f"{SPACE}.train.warmup_ratio.low: got -0.1, expected at least 0; ",
                f"{SPACE}.train.warmup_ratio.high: got 1.0, expected less than 1; ",
            ],
        ),
        (
            {"train.learning_rate": {"low": 1, "high": 1}},
            [f"{SPACE}.train.learning_rate.high: got 1, expected more than low (1); raise it"],
        ),
        (
            {"train.weight_decay": {"low": 0, "high": 1, "log": True}},
            [f"{SPACE}.train.weight_decay.low: got 0, expected more than 0 with log: true; "],
        ),
        (
            {"train.learning_rate": {"lo": 0, "low": 1, "high": 2}},
            [f"{SPACE}.train.learning_rate.lo: unknown key; did you mean low?"],
        ),
        ({"train.learning_rate": 5}, [f"{SPACE}.train.learning_rate: got 5, expected a list; "]),
        ({"train.learning_rate": []}, [f"{SPACE}.train.learning_rate: got [], expected at least"]),
        (
            {"train.max_steps": {"low": 4.5, "high": 9}},
            [f"{SPACE}.train.max_steps.low: got 4.5, expected a whole number; "],
        ),
        (
            {"train.deterministic": {"low": 0, "high": 1}},
            [f"{SPACE}.train.deterministic: takes no numbers, so it can't have a range; list its "],
        ),
        (
            {"train.micro_batch_size": [1, 2]},
            [f"{SPACE}.train.micro_batch_size: doesn't change the result of a training; remove it"],
        ),
        (
            {"train.fsdp2.cpu_offload": [True]},
            [f"{SPACE}.train.fsdp2.cpu_offload: doesn't change the result of a training; remove"],
        ),
        (
            {"train.eval_rows": [8, 16]},
            [f"{SPACE}.train.eval_rows: changes what validation losses are measured on; remove it"],
        ),
        ({"adapter": [None]}, [f"{SPACE}.adapter: is a section; choose one of its keys"]),
        *[
            (
                {key: values},
                [f"{SPACE}.{key}: can't be searched; choose a key of "],
            )
            for key, values in {
                "model": ["tiny"],
                "data.block_size": [32],
                "data.augmentation.flip": [True],
                "preference.beta": [0.1],
                "search.trials": [1],
            }.items()
        ],
        # Each is sound alone.
        (
            {
                "train.lr_scheduler_type": ["cosine", "wsd"],
                "train.warmup_ratio": {"low": 0.1, "high": 0.9},
                "train.decay_ratio": [0.1, 0.3],
            },
            [
                f"{SPACE}: some combinations are invalid: train.decay_ratio: got 0.3 "
                "with warmup_ratio 0.9, expected a sum of at most 1; leave some of them out"
            ],
        ),
    ]
    for space, starts in wrong:
        check_faults(searching(space), *starts)


def test_every_value_of_a_range_has_to_suit_the_workers() -> None:
    """The ends do, and what lies between them doesn't."""
    space = {"train.global_batch_size": {"low": 4, "high": 8}}
    (line,) = faults(searching(space, **{"runs.tuned.ray.num_workers": 2}))
    assert line.startswith(f"{SPACE}.train.global_batch_size: got 5, expected a multiple of ray.nu")


@pytest.mark.parametrize(
    ("also", "word"), [({"grid": {"train.learning_rate": [1e-3]}}, "grid"), ({"seeds": 2}, "seeds")]
)
def test_a_sweep_has_no_search(also: dict[str, Any], word: str) -> None:
    values = {f"runs.tuned.{key}": value for key, value in also.items()}
    assert faults(searching(RATE, **values)) == [
        f"runs.tuned.search: tuned is a sweep, because of its {word}, and a search takes "
        "one run; remove one of them"
    ]
    assert faults({"runs.tuned.grid": {"search.trials": [1, 2]}}) == [
        "runs.tuned.grid.search.trials: a search can't be in a grid; remove it"
    ]


def test_a_search_needs_validation_rows() -> None:
    (line,) = faults(searching(RATE, **{"datasets.functions.validation_share": 0}))
    assert line.startswith("datasets.functions.validation_share: got 0, but the best of several ")


def test_null_removes_a_search() -> None:
    experiment: Experiment = experiment_with({"runs.tuned.search": None})
    assert experiment.runs["tuned"].search is None
