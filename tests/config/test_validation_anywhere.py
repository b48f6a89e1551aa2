"""Faults at any key of any section, and in the defaults that runs inherit."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from small_config import HUB, MADE_UP, ON_THE_FLY, TABLE, URL, config_with, faults

from moray.config.load import load_experiment
from moray.config.schema.base import Section
from moray.config.schema.datasets import HubDataset, LocalFiles, PythonStdlib, Synthetic, Url
from moray.config.schema.experiment import Sections
from moray.config.schema.image_datasets import Digits, Idx, ImageFolder
from moray.config.schema.models import (
    HubModel,
    PathModel,
    RunModel,
    ScratchModel,
    ScratchVisionModel,
)

# The keys of one entry of each source, all of them sound.
ENTRIES: list[tuple[str, type[Section], dict[str, Any]]] = [
    ("datasets", PythonStdlib, {"source": "python-stdlib"}),
    ("datasets", LocalFiles, TABLE),
    ("datasets", Url, URL),
    ("datasets", HubDataset, HUB),
    ("datasets", Synthetic, MADE_UP),
    ("datasets", Digits, {"source": "digits"}),
    ("datasets", Idx, {"source": "idx", "train": {"images": "x", "labels": "x"}}),
    ("datasets", ImageFolder, {"source": "image-folder", "path": "x"}),
    ("models", ScratchVisionModel, {"source": "scratch-vision", "classes_of": "x"}),
    ("models", ScratchModel, {"source": "scratch", "tokenizer": {"train_on": "modules"}}),
    ("models", PathModel, {"source": "path", "path": "x"}),
    ("models", HubModel, HUB),
    ("models", RunModel, {"source": "run", "run": "tuned", "classes_of": "x"}),
]


# What other sections of a run can't be without.
REQUIRED: dict[str, dict[str, Any]] = {
    "num_workers": {"min": 1, "max": 2},
    "push": {"repo": "owner/name"},
    "distillation": {"teacher": "tiny"},
}


def keys_within(path: str, model: type[Section]) -> Iterator[tuple[str, str]]:
    """The sections below a model that are models too, at any depth, with each of their keys."""
    for name, field in model.model_fields.items():
        for annotation in (field.annotation, *get_args(field.annotation)):
            if isinstance(annotation, type) and issubclass(annotation, Section):
                yield from ((f"{path}.{name}", key) for key in annotation.model_fields)
                yield from keys_within(f"{path}.{name}", annotation)


EVERY_KEY: list[tuple[str, str, dict[str, Any]]] = [
    (path, key, REQUIRED.get(path.rpartition(".")[2], {}))
    for path, key in keys_within("runs.tuned", Sections)
] + [
    (f"{section}.x", key, entry) for section, model, entry in ENTRIES for key in model.model_fields
]


def test_every_section_is_among_them() -> None:
    paths = {path.removeprefix("runs.tuned.") for path, _, _ in EVERY_KEY}
    nested = {"adapter", "train.fsdp2", "train.deepspeed"}
    assert {"data", "train", "ray", "evaluate", "generate"} | nested <= paths


def test_nonsense_at_any_key_is_reported_under_that_key() -> None:
    for path, key, entry in EVERY_KEY:
        reported = faults({path: {**entry, key: {"?": ["?"]}}})
        places = (f"{path}.{key}: ", f"{path}.{key}.")
        assert reported, places
        assert all(line.startswith(places) for line in reported), (places, reported)


def test_an_unknown_key_of_any_source_is_reported_with_the_keys_of_that_source() -> None:
    for section, model, entry in ENTRIES:
        keys = ", ".join(model.model_fields)
        reported = faults({f"{section}.x": {**entry, "zzz": 1}})
        assert reported == [f"{section}.x.zzz: unknown key; expected one of {keys}"], model


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("train.learning_rate", "fast", "got 'fast', expected a number; "),
        ("train.learnig_rate", 1, "unknown key; did you mean learning_rate?"),
        ("ray.resources_per_worker", {"CPU": 0}, "got 0, expected 'auto' or more than 0; "),
        ("train", [], "got [], expected a mapping; "),
    ],
)
def test_a_fault_in_the_defaults_is_reported_once_and_not_for_each_run(
    key: str, value: object, problem: str
) -> None:
    (reported,) = faults({f"defaults.{key}": value})
    assert reported.startswith(f"defaults.{key}")
    assert problem in reported


@pytest.mark.parametrize(
    ("defaults", "run", "paths"),
    [
        (ON_THE_FLY, {"block_size": 32}, ["defaults.data.tokenize"]),
        # A run's own fault is its own, whichever of the keys stands in the defaults.
        (ON_THE_FLY | {"loader": "stream"}, {"loader": "memory"}, ["runs.tuned.data.tokenize"]),
        ({"loader": "stream"}, ON_THE_FLY, []),
    ],
)
def test_keys_of_the_defaults_that_are_at_odds_are_reported_once(
    defaults: dict[str, Any], run: dict[str, Any], paths: list[str]
) -> None:
    values = {"defaults.data": defaults, "runs.tuned.data": run}
    if paths:
        assert [line.split(":")[0] for line in faults(values)] == paths
    else:
        assert load_experiment(config_with(values)).runs["tuned"].data.loader == "stream"


def test_a_fault_in_the_defaults_stays_one_where_a_run_overrides_it() -> None:
    reported = faults({"defaults.train.seed": -1, "runs.base.train.seed": 1})
    assert [line.split(":")[0] for line in reported] == ["defaults.train.seed"]


def test_a_fault_in_the_defaults_does_not_hide_one_of_a_run() -> None:
    reported = faults({"defaults.train.seed": -1, "runs.base.train.seed": -2})
    assert [line.split(";")[0] for line in reported] == [
        "defaults.train.seed: got -1, expected at least 0",
        "runs.base.train.seed: got -2, expected at least 0",
    ]


def test_a_long_value_is_cut_short() -> None:
    (reported,) = faults({"defaults.train.seed": "9" * 500 + "x"})
    assert len(reported) < 200
