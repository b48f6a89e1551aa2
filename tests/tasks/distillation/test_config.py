"""What the stages of runs with a teacher depend on, and keys that don't fit them."""

from typing import Any

import pytest
from small_config import ON_THE_FLY, check_faults, experiment_with

from moray.config import plan
from moray.config.schema.experiment import Experiment

SCRATCH = {"source": "scratch", "tokenizer": {"train_on": "modules"}}
PATH = "runs.student.distillation"
STUDENT: dict[str, Any] = {
    "models.small": {**SCRATCH, "hidden_size": 64},
    "runs.student": {"model": "small", "dataset": "modules"},
    PATH: {"teacher": {"run": "base"}},
}


def experiment(values: dict[str, Any] | None = None) -> Experiment:
    return experiment_with(STUDENT | (values or {}))


def test_a_run_with_a_teacher_trains_on_its_predictions_and_is_scored_as_any_on_text() -> None:
    found, without = experiment(), experiment({PATH: None})
    assert plan.task_of_training(found, "student") == "distillation"
    assert plan.task_of_training(without, "student") == plan.task(found, "student") == "language"
    ((dataset, name),) = plan.taught_stores(found, "student").items()
    assert dataset == "modules"
    assert name.startswith("modules-base-")
    assert plan.store_folders(found, "student") == [f"results/teacher/{name}"]
    assert plan.prepared_folders(found, "student") == plan.store_folders(without, "student")
    assert plan.evaluate_config(without, "student") == plan.evaluate_config(found, "student")
    # Runs without a teacher have the identity that they had before there were any.
    assert "distillation" not in plan.train_config(without, "student")
    assert plan.train_config(found, "student")["distillation"]["alpha"] == 0.5


@pytest.mark.parametrize(
    ("key", "value", "is_stored"),
    [
        ("alpha", 0.9, False),
        ("temperature", 2.0, True),
        ("top_k", 8, True),
        ("precision", "fp32", True),
        ("teacher", {"run": "tuned"}, True),
        ("teacher", "tiny", True),
    ],
)
def test_what_is_stored_depends_on_all_but_the_weight(
    key: str, value: object, is_stored: bool
) -> None:
    before, after = experiment(), experiment({f"{PATH}.{key}": value})
    stores = [plan.store_folders(one, "student") for one in (before, after)]
    assert (stores[0] != stores[1]) == is_stored
    configs = [plan.train_config(one, "student") for one in (before, after)]
    assert configs[0] != configs[1]


def test_runs_share_what_is_stored_of_a_teacher() -> None:
    other = {"model": "small", "dataset": {"modules": 0.5, "notes": 0.5}}
    found = experiment({"runs.other": {**other, "distillation": STUDENT[PATH] | {"alpha": 1}}})
    assert plan.taught_stores(found, "other").keys() == {"modules", "notes"}
    shared = plan.taught_stores(found, "other")["modules"]
    assert plan.taught_stores(found, "student")["modules"] == shared


def test_what_a_teacher_was_trained_on_counts_as_trained_on() -> None:
    found = experiment({f"{PATH}.teacher": {"run": "tuned"}})
    assert found.trained_by("student") == {
        "functions": ["tuned"],
        "modules": ["student", "base"],
    }


def test_a_run_waits_for_its_teacher() -> None:
    assert experiment().needs("student") == ["base"]
    # Without one it is trained beside `base`.
    assert experiment({PATH: None}).concurrent("student") == 2
    assert experiment().concurrent("base") == 1


def test_an_adapter_as_a_teacher_needs_its_base() -> None:
    found = experiment(
        {
            f"{PATH}.teacher": {"run": "tuned"},
            "runs.tuned.adapter": {"rank": 4},
            "runs.tuned.export": {"merge_adapter": False},
        }
    )
    assert plan.teacher_dependencies(found, "student") == ["results/runs/base/model"]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {f"{PATH}.teacher": {"run": "bsae"}},
            f"{PATH}.teacher.run: got bsae, expected a name under runs; did you mean base?",
        ),
        (
            {f"{PATH}.teacher": "base"},
            f"{PATH}.teacher: got base, which is under runs, expected a name under models; write "
            "{run: base} for its model",
        ),
        (
            {f"{PATH}.teacher": {"run": "student"}},
            f"{PATH}.teacher.run: runs form a cycle (student <- student); give one of them a base "
            "model from models",
        ),
        (
            {"models.small.tokenizer.vocab_size": 500},
            f"{PATH}.teacher: its tokenizer, models.tiny.tokenizer, differs from "
            "models.small.tokenizer, so it predicts other tokens; choose a teacher of the same "
            "family",
        ),
        (
            {"runs.student.data": {**ON_THE_FLY, "loader": "stream"}},
            "runs.student.data.tokenize: on-the-fly can't be used with a teacher, whose "
            "predictions are stored with the tokens; set it to ahead",
        ),
        (
            {
                "datasets.pairs": {"source": "python-stdlib", "format": "preference"},
                "runs.student.dataset": "pairs",
            },
            f"{PATH}: is for runs on text, and format: preference isn't; remove it",
        ),
        (
            {"models.tiny.max_position_embeddings": 32, "runs.base.data": {"block_size": 32}},
            f"{PATH}.teacher: rows have 64 tokens, and models.tiny takes at most 32; lower "
            "data.block_size, or raise max_position_embeddings of the teacher",
        ),
        ({f"{PATH}.alpha": 0}, f"{PATH}.alpha: got 0, expected more than 0"),
    ],
)
def test_a_teacher_that_does_not_fit_costs_a_line(values: dict[str, Any], line: str) -> None:
    if "models.tiny.max_position_embeddings" in values:
        values = values | {"runs.tuned.data": {"block_size": 32}}
    check_faults(STUDENT | values, line)
