"""What the stages of preference runs depend on, and keys that don't fit them."""

from pathlib import Path
from typing import Any

import pytest
from small_config import check_faults, experiment_with, faults

from moray.config import plan
from moray.config.schema.experiment import Experiment

ROOT = Path(__file__).parents[2]
PAIRS: dict[str, Any] = {
    "datasets.pairs": {"source": "python-stdlib", "format": "preference"},
    "runs.preferred": {"model": {"run": "tuned"}, "dataset": "pairs"},
}


def experiment(values: dict[str, Any] | None = None) -> Experiment:
    return experiment_with(PAIRS | (values or {}))


def test_the_task_follows_from_the_format() -> None:
    tasks = {run: plan.task(experiment(), run) for run in experiment().runs}
    assert tasks == {"base": "language", "tuned": "language", "preferred": "preference"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("runs.preferred.preference.loss", "ipo"),
        ("runs.preferred.preference.beta", 0.5),
        ("defaults.preference.label_smoothing", 0.1),
    ],
)
def test_the_loss_changes_training_and_evaluation_and_neither_tokens_nor_reference(
    path: str, value: object
) -> None:
    before, after = experiment(), experiment({path: value})
    key = path.rpartition(".")[2]
    for config_of in (plan.train_config, plan.evaluate_config):
        assert config_of(after, "preferred")["preference"][key] == value
        assert config_of(before, "preferred") != config_of(after, "preferred")
        assert config_of(before, "tuned") == config_of(after, "tuned")
        assert "preference" not in config_of(after, "tuned")
    assert plan.store_config(before, "preferred", "pairs") == plan.store_config(
        after, "preferred", "pairs"
    )
    assert plan.store_folders(before, "preferred") == plan.store_folders(after, "preferred")


def test_a_row_has_room_for_two_answers_of_the_models_maximum_length() -> None:
    longest = experiment().models["tiny"].model_dump()["max_position_embeddings"]
    data = "runs.preferred.data"
    experiment({data: {"block_size": 2 * longest}})
    (line,) = faults(PAIRS | {data: {"block_size": 2 * longest + 2}})
    assert line.startswith(f"{data}.block_size: makes sequences of {longest + 1} tokens")


def test_rows_to_train_on_are_those_of_the_reference() -> None:
    found = experiment()
    name = plan.reference_name(found, "preferred")
    assert name.startswith("pairs-tuned-")
    assert plan.store_folders(found, "preferred") == [f"results/reference/{name}"]
    tokens = plan.prepared_folders(found, "preferred")
    assert tokens == [f"results/tokens/{plan.store_name(found, 'preferred', 'pairs')}"]
    assert plan.store_folders(found, "tuned") == plan.prepared_folders(found, "tuned")


@pytest.mark.parametrize("loss", ["cpo", "simpo", "orpo"])
def test_without_a_reference_runs_train_on_their_tokens(loss: str) -> None:
    found = experiment({"runs.preferred.preference.loss": loss})
    assert plan.store_folders(found, "preferred") == plan.prepared_folders(found, "preferred")


@pytest.mark.parametrize(
    ("values", "shared"),
    [
        ({}, True),
        ({"runs.again.preference.beta": 0.5, "runs.again.train.seed": 5}, True),
        ({"runs.again.evaluate.batch_size": 1, "runs.again.evaluate.num_workers": 3}, True),
        ({"runs.again.model": {"run": "base"}}, False),
        ({"runs.again.model": "tiny"}, False),
        ({"runs.again.data.block_size": 32}, False),
        ({"runs.again.evaluate.precision": "bf16"}, True),
        ({"runs.again.train.precision": "bf16"}, False),
        ({"runs.again.adapter.base_dtype": "bf16"}, False),
        ({"runs.again.adapter.quantize_base": "4bit"}, False),
        ({"runs.again.adapter.quantize_base": "8bit"}, False),
    ],
)
def test_runs_share_a_reference_if_start_tokens_and_types_are_the_same(
    values: dict[str, Any], shared: bool
) -> None:
    found = experiment({"runs.again": {"model": {"run": "tuned"}, "dataset": "pairs"}} | values)
    names = {plan.reference_name(found, run) for run in ("preferred", "again")}
    assert len(names) == (1 if shared else 2)


def test_what_does_not_fit_costs_one_line() -> None:
    table = {"source": "files", "path": "x"}
    wrong: list[tuple[str, object, str]] = [
        ("runs.preferred.preference.beta", -0.1, ": got -0.1, expected more than 0; "),
        ("runs.preferred.preference.label_smoothing", 0.5, ": got 0.5, expected less than 0.5; "),
        ("runs.preferred.preference.label_smoothing", -0.1, ": got -0.1, expected at least 0; "),
        (
            "runs.preferred.preference",
            {"loss": "ipo", "label_smoothing": 0.1},
            ".label_smoothing: got 0.1 with loss: ipo, which has no smoothing; ",
        ),
        (
            "runs.preferred.preference",
            {"loss": "robust"},
            ".label_smoothing: got 0 with loss: robust, which is dpo then; set it to 0.1",
        ),
        (
            "runs.preferred.preference",
            {"simpo_gamma": 1.0},
            ".simpo_gamma: got 1 with loss: dpo, which has no such margin; ",
        ),
        ("runs.preferred.preference.loss", "kto", ": got 'kto', expected 'dpo', 'ipo', 'hinge', "),
        ("runs.preferred.preference.betta", 0.1, ": unknown key; did you mean beta?"),
        (
            "runs.preferred.data",
            {"tokenize": "on-the-fly", "loader": "stream"},
            ".tokenize: on-the-fly can't be used with a dataset of format: preference,",
        ),
        (
            "runs.preferred.train.router_aux_loss",
            True,
            ": is not for datasets of format: preference; set it to false",
        ),
        ("runs.preferred.data.block_size", 63, ": got 63, expected an even number"),
        (
            "datasets.table",
            {**table, "format": "preferences"},
            ".format: got 'preferences', expected 'text', 'prompt-completion', ",
        ),
        (
            "datasets.table",
            {**table, "format": "preference", "columns": {"completion": "x"}},
            ".columns.completion: format preference doesn't have this column, only ",
        ),
    ]
    for path, value, rest in wrong:
        check_faults(PAIRS | {path: value}, path + rest)


def test_streaming_rows_that_are_made_ahead_is_fine() -> None:
    assert experiment({"runs.preferred.data.loader": "stream"}).runs["preferred"].data
