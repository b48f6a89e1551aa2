"""What a config says about labelled texts: stores, what stages depend on, and what is refused."""

from typing import Any

import pytest
from small_config import HUB, experiment_with, faults

from moray.config import plan, user_files

SCRATCH = {"source": "scratch", "tokenizer": {"train_on": "modules"}, "classes_of": "reviews"}
TEXTS: dict[str, Any] = {
    "datasets.reviews": {"source": "files", "path": "x", "format": "classification"},
    "models.bert": HUB | {"classes_of": "reviews"},
    "models.small": SCRATCH,
    "runs.seen": {"model": "bert", "dataset": "reviews"},
    "runs.read": {"model": "small", "dataset": "reviews"},
}


def test_a_run_has_a_store_of_its_own_that_only_the_size_of_rows_changes() -> None:
    before = experiment_with(TEXTS)
    assert plan.task(before, "seen") == "classification"
    folder = plan.store_folders(before, "seen")[0]
    assert folder.startswith("results/labelled/reviews-bert-")
    packing = experiment_with(TEXTS | {"runs.seen.data": {"packing": False}})
    assert plan.store_folders(packing, "seen")[0] == folder
    longer = experiment_with(TEXTS | {"runs.seen.data": {"block_size": 32}})
    assert plan.store_folders(longer, "seen")[0] != folder


def test_a_model_depends_on_the_dataset_of_its_labels() -> None:
    experiment = experiment_with(TEXTS)
    reviews, modules = (f"results/datasets/{name}/dataset.json" for name in ("reviews", "modules"))
    assert user_files.model_files(experiment, "bert") == [reviews]
    assert user_files.model_files(experiment, "small") == [reviews, modules]
    assert {plan.modality_of_model(experiment, name) for name in ("bert", "small")} == {
        "labelled text"
    }
    # One without is as it was before the key.
    assert "classes_of" not in plan.model_config(experiment, "tiny")
    assert user_files.model_files(experiment, "tiny") == [modules]


def test_only_runs_on_labelled_texts_depend_on_class_weights() -> None:
    weights = {"defaults.classification": {"class_weights": "balanced"}}
    before, after = experiment_with(TEXTS), experiment_with(TEXTS | weights)
    assert plan.train_config(before, "seen") != plan.train_config(after, "seen")
    assert plan.train_config(before, "tuned") == plan.train_config(after, "tuned")
    rare = {"defaults.classification": {"class_weights": {"rare": 5}}}
    section = plan.train_config(experiment_with(TEXTS | rare), "seen")["classification"]
    assert section == {"class_weights": {"rare": 5.0}}


def test_a_dataset_depends_on_its_problem_only_where_it_is_said() -> None:
    said = experiment_with(TEXTS | {"datasets.reviews.problem_type": "regression"})
    assert plan.dataset_config(said, "reviews")["problem_type"] == "regression"
    assert "problem_type" not in plan.dataset_config(experiment_with(TEXTS), "reviews")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"datasets.notes.problem_type": "regression"},
            "notes.problem_type: only for format",
        ),
        ({"datasets.reviews.problem_type": "ranking"}, "problem_type: got 'ranking', expected"),
        ({"runs.seen.classification.class_weights": {"a": 0}}, "runs.seen.classification."),
        ({"runs.seen.model": "tiny"}, "or set models.tiny.classes_of: reviews"),
        ({"models.small.classes_of": "modules"}, "models.small.classes_of: got modules, which has"),
        ({"models.bert.new_tokens": ["<a>"]}, "models.bert.new_tokens: only for models of text"),
        ({"runs.seen.data.tokenize": "on-the-fly", "runs.seen.data.loader": "stream"}, "tokenize"),
        ({"runs.seen.generate.metrics": ["chrf"]}, "generate.metrics: is for language models"),
        ({"runs.seen.benchmarks.tasks": ["x"]}, "benchmarks.tasks: is for language models"),
        ({"runs.seen.gguf": {}}, "runs.seen.gguf: is for language models"),
        ({"runs.seen.train.attention": "flex"}, "train.attention: is for language models"),
        ({"runs.seen.train.router_aux_loss": True}, "router_aux_loss: is for language models"),
        ({"runs.seen.adapter": {"quantize_base": "8bit"}}, "quantize_base: is for language models"),
    ],
)
def test_what_can_not_be_is_refused(values: dict[str, Any], expected: str) -> None:
    found = faults(TEXTS | values)
    assert any(expected in line for line in found), found


def test_random_weights_are_for_models_with_tokens() -> None:
    experiment_with(TEXTS | {"models.bert.random_weights": True})
    digits = {"datasets.digits": {"source": "digits"}, "models.vit": HUB | {"classes_of": "digits"}}
    experiment_with(digits)
    found = faults(digits | {"models.vit.random_weights": True})
    assert found[0].startswith("models.vit.classes_of: got digits, which has images, expected lab")
