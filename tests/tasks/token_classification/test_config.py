"""What a config says about words with tags."""

from typing import Any

import pytest
from small_config import HUB, experiment_with, faults

from moray.config import plan

TAGGED: dict[str, Any] = {
    "datasets.names": {"source": "files", "path": "x", "format": "token-classification"},
    "models.bert": HUB | {"classes_of": "names"},
    "runs.tagged": {"model": "bert", "dataset": "names"},
}


def test_a_run_has_the_task_and_the_stages_of_labelled_text() -> None:
    experiment = experiment_with(TAGGED)
    assert plan.task(experiment, "tagged") == "token_classification"
    assert plan.modality(experiment, "tagged") == "labelled text"
    assert plan.store_folders(experiment, "tagged")[0].startswith("results/labelled/names-bert-")
    weights = {"defaults.classification": {"class_weights": "balanced"}}
    other = experiment_with(TAGGED | weights)
    assert plan.train_config(experiment, "tagged") == plan.train_config(other, "tagged")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"datasets.names.problem_type": "regression"}, "names.problem_type: only for format"),
        ({"datasets.names.columns": {"text": "t"}}, "columns.text: format token-classification"),
        ({"runs.tagged.model": "tiny"}, "or set models.tiny.classes_of: names"),
        ({"runs.tagged.gguf": {}}, "runs.tagged.gguf: is for language models"),
        ({"runs.tagged.adapter": {"quantize_base": "8bit"}}, "quantize_base: is for language"),
    ],
)
def test_what_can_not_be_is_refused(values: dict[str, Any], expected: str) -> None:
    found = faults(TAGGED | values)
    assert any(expected in line for line in found), found
