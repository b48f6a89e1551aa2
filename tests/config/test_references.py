from itertools import product
from typing import Any

import pytest
from small_config import HUB, config_with

from moray.config.references import check_references
from moray.config.schema.experiment import Experiment

SECOND = {"model": {"run": "tuned"}, "dataset": "functions"}


def paths(values: dict[str, Any]) -> list[str]:
    """Keys at which references are at fault; the defaults stand in each run that needs them."""
    experiment = Experiment.model_validate(config_with(values))
    return [problem.path for problem in check_references(experiment)]


def test_a_sound_config_has_no_fault() -> None:
    assert paths({}) == []
    assert paths({"runs.third": SECOND}) == []


def test_two_runs_cannot_be_uploaded_to_the_same_repository() -> None:
    first, second = ({"repo": f"owner/{name}"} for name in ("first", "second"))
    assert paths({"runs.base.push": first, "runs.tuned.push": second}) == []
    assert paths({"runs.base.push": first, "runs.tuned.push": first}) == ["runs.tuned.push.repo"]


def test_files_for_llama_cpp_are_made_of_whole_models_alone() -> None:
    adapter = {"runs.tuned.adapter": {"rank": 4}, "runs.tuned.gguf": {}}
    assert paths(adapter) == []
    assert paths(adapter | {"runs.tuned.export": {"merge_adapter": False}}) == ["runs.tuned.gguf"]


def test_a_name_that_nothing_has_is_a_fault() -> None:
    unknown: list[tuple[str, object, str]] = [
        ("runs.base.dataset", {"modules": 1, "none": 1}, "runs.base.dataset"),
        # A name has to be in its own section.
        ("runs.base.dataset", "tiny", "runs.base.dataset"),
        ("runs.base.model", "tuned", "runs.base.model"),
        ("runs.tuned.model", {"run": "tiny"}, "runs.tuned.model.run"),
        # With the validation share of 0.05, nothing would be left to train on.
        ("datasets.notes.test_share", 0.95, "datasets.notes.test_share"),
    ]
    for path, value, fault in unknown:
        assert paths({path: value}) == [fault], value


def test_every_unknown_name_is_reported() -> None:
    assert paths({"runs.base.model": "none", "runs.tuned.dataset": "none"}) == [
        "runs.base.model",
        "runs.tuned.dataset",
    ]


@pytest.mark.parametrize("adapter", [{}, {"quantize_base": "4bit"}])
def test_a_wrong_name_is_reported_whatever_else_a_run_has(adapter: dict[str, Any]) -> None:
    pairs = {"source": "python-stdlib", "format": "preference"}
    search = {"trials": 2, "space": {"train.learning_rate": [1e-3, 1e-4]}}
    more: dict[str, Any] = {
        "datasets.pairs": pairs,
        "runs.base.adapter": adapter,
        "runs.tuned.adapter": adapter,
        "runs.third": {"model": {"run": "tuned"}, "dataset": "pairs", "adapter": adapter},
        "runs.best": {"model": {"best": "swept"}, "dataset": "pairs", "adapter": adapter},
        "runs.searched": {"model": "tiny", "dataset": "modules", "search": search},
    }
    assert paths(more) == ["runs.best.model.best"]
    for path, value, fault in (
        ("runs.base.model", "none", "runs.base.model"),
        ("runs.tuned.model", {"run": "none"}, "runs.tuned.model.run"),
        ("runs.base.model", {"run": "third"}, ""),
        ("runs.third.dataset", "none", "runs.third.dataset"),
        ("runs.searched.model", "none", "runs.searched.model"),
        ("runs.searched.dataset", "none", "runs.searched.dataset"),
        ("models.tiny.tokenizer.train_on", "none", "models.tiny.tokenizer.train_on"),
    ):
        circle = [f"runs.{run}.model.run" for run in ("base", "tuned", "third")]
        expected = {"runs.best.model.best", *([fault] if fault else circle)}
        assert set(paths(more | {path: value})) == expected, value


@pytest.mark.parametrize(
    ("models", "in_circle"),
    [
        ({"base": "base"}, ["base"]),
        ({"base": "tuned"}, ["base", "tuned"]),
        ({"base": "third", "third": "tuned"}, ["base", "tuned", "third"]),
        # Runs that lead into a circle are not part of it.
        ({"base": "base", "third": "tuned"}, ["base"]),
        ({"third": "third"}, ["third"]),
    ],
)
def test_runs_that_go_in_circles_are_reported_and_those_behind_them_are_not(
    models: dict[str, str], in_circle: list[str]
) -> None:
    values: dict[str, Any] = {"runs.third": SECOND}
    values |= {f"runs.{run}.model": {"run": start} for run, start in models.items()}
    assert paths(values) == [f"runs.{run}.model.run" for run in in_circle]


@pytest.mark.parametrize(
    ("batch", "workers", "sound"), [(16, 1, True), (16, 4, True), (16, 3, False), (2, 4, False)]
)
def test_a_step_has_to_be_divided_evenly_among_the_workers(
    batch: int, workers: int, sound: bool
) -> None:
    values = {"runs.base.train.global_batch_size": batch, "runs.base.ray.num_workers": workers}
    assert paths(values) == ([] if sound else ["runs.base.train.global_batch_size"])


def test_a_block_has_to_fit_the_model_at_the_root_of_the_lineage() -> None:
    assert paths({"runs.tuned.data.block_size": 1024}) == []
    assert paths({"runs.tuned.data.block_size": 1025}) == ["runs.tuned.data.block_size"]
    wider = {"models.tiny.max_position_embeddings": 2048, "runs.tuned.data.block_size": 2048}
    assert paths(wider) == []


def test_the_length_of_a_model_that_is_yet_to_be_read_is_not_held_against_a_block() -> None:
    assert paths({"runs.base.model": "folder", "runs.base.data.block_size": 10**6}) == []


PATHS = {"train": "a", "validation": "b", "test": "c"}


def test_shares_count_where_a_split_is_not_given() -> None:
    cases = [
        ([], 0.5, 0.5, False),
        ([], 0.5, 0.4, True),
        # A share that isn't taken doesn't count.
        (["test"], 0.5, 0.5, True),
        (["test"], 0.99, 0.99, True),
        (["test"], 0.5, 0, True),
        (["validation"], 0.99, 0.99, True),
        (["validation"], 0.5, 0, False),
        (["validation", "test"], 0.99, 0, True),
    ]
    sources = {"files": ("path", {}), "url": ("url", {}), "hub": ("split", HUB)}
    for (source, (key, more)), (given, validation, test, sound) in product(sources.items(), cases):
        dataset: dict[str, Any] = {
            **more,
            "source": source,
            key: {split: PATHS[split] for split in ["train", *given]},
            "validation_share": validation,
            "test_share": test,
        }
        values = {"datasets.x": dataset, "runs.base.dataset": "x"}
        assert paths(values) == ([] if sound else ["datasets.x.test_share"]), dataset


def test_only_datasets_that_a_run_uses_need_rows_to_judge_it_on() -> None:
    assert paths({"datasets.notes.test_share": 0}) == []
    assert paths({"datasets.functions.test_share": 0}) == ["datasets.functions.test_share"]
    assert paths({"datasets.functions.validation_share": 0}) == []
