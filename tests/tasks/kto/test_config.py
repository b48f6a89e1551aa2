"""What the stages of runs on good and bad answers depend on, and keys that don't fit them."""

from typing import Any

import pytest
from small_config import check_faults, experiment_with

from moray.config import plan
from moray.config.schema.experiment import Experiment
from moray.corpus.dataset import Document
from moray.errors import UserError
from moray.tasks.kto.survey import Judgements

ANSWERS: dict[str, Any] = {
    "datasets.answers": {"source": "python-stdlib", "format": "unpaired-preference"},
    "runs.judged": {"model": {"run": "tuned"}, "dataset": "answers"},
}


def experiment(values: dict[str, Any] | None = None) -> Experiment:
    return experiment_with(ANSWERS | (values or {}))


@pytest.mark.parametrize(
    ("key", "value"), [("beta", 0.5), ("desirable_weight", 2.0), ("undesirable_weight", 0.5)]
)
def test_the_loss_changes_training_and_evaluation_and_neither_tokens_nor_reference(
    key: str, value: float
) -> None:
    before, after = experiment(), experiment({f"runs.judged.kto.{key}": value})
    assert plan.task(before, "judged") == "kto"
    for config_of in (plan.train_config, plan.evaluate_config):
        assert config_of(after, "judged")["kto"][key] == value
        assert config_of(before, "judged") != config_of(after, "judged")
        assert "kto" not in config_of(after, "tuned")
    assert plan.store_folders(before, "judged") == plan.store_folders(after, "judged")
    (store,) = plan.store_folders(after, "judged")
    assert store.startswith("results/reference/answers-tuned-")


def test_what_does_not_fit_costs_one_line() -> None:
    wrong: list[tuple[str, object, str]] = [
        ("runs.judged.kto.beta", 0, ": got 0, expected more than 0; "),
        ("runs.judged.kto.desirable_weight", 0, ": got 0, expected more than 0; "),
        ("runs.judged.kto.loss", "kto", ": unknown key"),
        ("runs.judged.data.block_size", 63, ": got 63, expected an even number"),
        (
            "runs.judged.data",
            {"tokenize": "on-the-fly", "loader": "stream"},
            ".tokenize: on-the-fly can't be used with a dataset of format: unpaired-preference,",
        ),
        (
            "runs.judged.train.router_aux_loss",
            True,
            ": is not for datasets of format: unpaired-preference",
        ),
        (
            "datasets.table",
            {"source": "files", "path": "x", "format": "unpaired-preference"}
            | {"columns": {"chosen": "x"}},
            ".columns.chosen: format unpaired-preference doesn't have this column, only ",
        ),
    ]
    for path, value, rest in wrong:
        check_faults(ANSWERS | {path: value}, path + rest)


@pytest.mark.parametrize("label", [True, False])
def test_answers_of_one_kind_are_refused(label: bool) -> None:
    survey = Judgements()
    survey.check("datasets.answers")
    rows = [("train", label), ("test", not label), ("train", label)]
    for split, good in rows:
        survey.note(split, Document(label=good))
    counts = "2 good and 0 bad" if label else "0 good and 2 bad"
    with pytest.raises(UserError, match=f"datasets.answers: got {counts} answers to train on"):
        survey.facts()
    survey.note("train", Document(label=not label))
    assert survey.facts()["desirable"]["train"] == (2 if label else 1)
    assert survey.summary == "answers, 50% of them good"
