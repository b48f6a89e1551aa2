"""What results of runs on conversations depend on: chat templates and keys for turns."""

from typing import Any

import pytest
from small_config import experiment_with

from moray.config import plan
from moray.config.schema.experiment import Experiment


def store_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """That of a run's only dataset."""
    return plan.store_config(experiment, run, *experiment.runs[run].datasets)


def store_name(experiment: Experiment, run: str) -> str:
    """That of a run's only dataset."""
    return plan.store_name(experiment, run, *experiment.runs[run].datasets)


# Four runs in a row, on conversations and on texts in turn.
CHAIN: dict[str, Any] = {
    "datasets.talks": {"source": "files", "path": "x", "format": "messages"},
    "runs": {
        "texts": {"model": "tiny", "dataset": "modules"},
        "talks": {"model": {"run": "texts"}, "dataset": "talks"},
        "more": {"model": {"run": "talks"}, "dataset": "functions"},
        "last": {"model": {"run": "more"}, "dataset": "talks"},
    },
}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [None, None, None, None]),
        # A run on texts has no template of its own, and keeps that of where it starts from.
        ({"defaults.data.chat_template": "{{D}}"}, [None, "{{D}}", "{{D}}", "{{D}}"]),
        ({"runs.texts.data.chat_template": "{{A}}"}, [None, None, None, None]),
        ({"runs.talks.data.chat_template": "{{B}}"}, [None, "{{B}}", "{{B}}", "{{B}}"]),
        ({"runs.more.data.chat_template": "{{C}}"}, [None, None, None, None]),
        (
            {"runs.talks.data.chat_template": "{{B}}", "runs.last.data.chat_template": "{{E}}"},
            [None, "{{B}}", "{{B}}", "{{E}}"],
        ),
        (
            {"runs.talks.model": "tiny", "runs.last.data.chat_template": "{{E}}"},
            [None] * 3 + ["{{E}}"],
        ),
    ],
)
def test_a_run_has_the_template_of_its_conversations_or_of_where_it_starts_from(
    values: dict[str, Any], expected: list[str | None]
) -> None:
    experiment = experiment_with(CHAIN | values)
    runs = ["texts", "talks", "more", "last"]
    assert [plan.chat_template(experiment, run) for run in runs] == expected
    keys = [plan.export_config(experiment, run)["chat_template"] for run in runs]
    assert keys == expected
    # Texts don't go through a template, so that their tokens don't depend on one.
    stores = [store_config(experiment, run)["chat_template"] for run in runs]
    assert stores == [None, expected[1], None, expected[3]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [{}, {}, {}, {}]),
        ({"defaults.data.template_variables": {"a": 1}}, [{}, {"a": 1}, {"a": 1}, {"a": 1}]),
        ({"runs.texts.data.template_variables": {"a": 1}}, [{}, {}, {}, {}]),
        (
            {
                "runs.talks.data.template_variables": {"a": 1, "b": 2},
                "runs.last.data.template_variables": {"a": 3},
            },
            [{}, {"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 3, "b": 2}],
        ),
        # Another template has other variables.
        (
            {
                "runs.talks.data.template_variables": {"a": 1},
                "runs.last.data.chat_template": "{{E}}",
            },
            [{}, {"a": 1}, {"a": 1}, {}],
        ),
    ],
)
def test_a_run_has_its_template_s_variables_and_those_of_where_it_starts_from(
    values: dict[str, Any], expected: list[dict[str, int]]
) -> None:
    experiment = experiment_with(CHAIN | values)
    runs = ["texts", "talks", "more", "last"]
    exports = [plan.export_config(experiment, run) for run in runs]
    assert [export.get("template_variables", {}) for export in exports] == expected
    stores = [store_config(experiment, run) for run in runs]
    used = [{}, expected[1], {}, expected[3]]
    assert [store.get("template_variables", {}) for store in stores] == used
    # A key that isn't set is no part of results, so that those of earlier versions stay up to date.
    assert not any(one.get("template_variables") == {} for one in (*exports, *stores))


TALKS = {"messages", "instruction"}
ANSWERED = {"preference", "unpaired-preference"}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("turns", "each", TALKS),
        ("mask_history", True, TALKS),
        ("train_template_text", True, {*TALKS, *ANSWERED}),
        ("template_variables", {"a": 1}, {*TALKS, *ANSWERED}),
    ],
)
def test_keys_for_conversations_change_no_tokens_of_other_formats(
    key: str, value: Any, expected: set[str]
) -> None:
    for format in (*TALKS, *ANSWERED, "prompt-completion", "text"):
        section = {"source": "files", "path": "x", "format": format}
        talks = {"datasets.talks": section, "runs": {"one": {"model": "tiny", "dataset": "talks"}}}
        plain, changed = (
            experiment_with(talks | values) for values in ({}, {f"runs.one.data.{key}": value})
        )
        is_other = store_name(plain, "one") != store_name(changed, "one")
        assert is_other == (format in expected), format


def test_an_export_has_the_rule_for_bos_of_its_run_unless_it_is_the_default() -> None:
    """So that exports of versions without the key stay up to date."""
    experiment = experiment_with(
        CHAIN | {"runs.texts.data.bos": False, "runs.talks.data.bos": True}
    )
    found = {run: plan.export_config(experiment, run).get("bos") for run in experiment.runs}
    assert found == {"texts": False, "talks": True, "more": None, "last": None}


def test_another_template_makes_another_store_of_conversations_and_none_of_texts() -> None:
    plain = experiment_with(CHAIN)
    templated = experiment_with(CHAIN | {"defaults.data.chat_template": "{{T}}"})
    same = {run: store_name(plain, run) == store_name(templated, run) for run in plain.runs}
    assert same == {"texts": True, "talks": False, "more": True, "last": False}
