"""What a config says about reward models: stores, what stages depend on, and what is refused."""

from typing import Any

import pytest
from small_config import HUB, experiment_with, faults

from moray.config import plan, user_files

SCRATCH = {"source": "scratch", "tokenizer": {"train_on": "modules"}, "classes_of": "judged"}
PAIRS: dict[str, Any] = {
    "datasets.judged": {"source": "files", "path": "x", "format": "reward"},
    "models.bert": HUB | {"classes_of": "judged"},
    "models.small": SCRATCH,
    "runs.judge": {"model": "bert", "dataset": "judged"},
    "runs.read": {"model": "small", "dataset": "judged"},
}
TEMPLATE = "{{ messages }}{{ enable_thinking }}"


def test_a_store_depends_on_what_texts_are_made_of() -> None:
    before = experiment_with(PAIRS)
    assert plan.task(before, "judge") == "reward"
    assert plan.prepared_folders(before, "judge") == plan.store_folders(before, "judge")
    folder = plan.store_folders(before, "judge")[0]
    assert folder.startswith("results/labelled/judged-bert-")
    assert plan.store_config(before, "judge", "judged") == {
        "block_size": 64,
        "chat_template": None,
        "format": "reward",
        "long_documents": "split",
    }
    same = experiment_with(PAIRS | {"runs.judge.data": {"packing": False, "turns": "each"}})
    assert plan.store_folders(same, "judge")[0] == folder
    for keys in (
        {"block_size": 32},
        {"long_documents": "drop"},
        {"chat_template": TEMPLATE},
        {"chat_template": TEMPLATE, "template_variables": {"enable_thinking": False}},
    ):
        other = experiment_with(PAIRS | {"runs.judge.data": keys})
        assert plan.store_folders(other, "judge")[0] != folder
        exported = plan.export_config(other, "judge")
        for key in ("chat_template", "template_variables"):
            assert exported.get(key) == keys.get(key)


def test_a_run_that_starts_from_another_has_its_template() -> None:
    chain = {
        "runs.judge.data": {"chat_template": TEMPLATE},
        "runs.more": {"model": {"run": "judge"}, "dataset": "judged"},
    }
    found = plan.store_config(experiment_with(PAIRS | chain), "more", "judged")
    assert found["chat_template"] == TEMPLATE


def test_only_reward_models_depend_on_centring() -> None:
    section = {"defaults.reward": {"center_rewards_coefficient": 0.01}}
    before, after = experiment_with(PAIRS), experiment_with(PAIRS | section)
    for config in (plan.train_config, plan.evaluate_config):
        assert config(before, "judge")["reward"] == {"center_rewards_coefficient": None}
        assert config(after, "judge")["reward"] == {"center_rewards_coefficient": 0.01}
        assert config(before, "tuned") == config(after, "tuned")


HEIR = {
    "models.heir": {"source": "run", "run": "tuned", "classes_of": "judged"},
    "runs.heir": {"model": "heir", "dataset": "judged"},
}


def test_a_model_that_is_made_of_a_run_depends_on_it() -> None:
    experiment = experiment_with(PAIRS | HEIR)
    assert user_files.model_files(experiment, "heir") == [
        "results/datasets/judged/dataset.json",
        "results/runs/tuned/model/manifest.json",
    ]
    assert plan.model_config(experiment, "heir") == {
        "classes_of": "judged",
        "run": "tuned",
        "seed": 0,
        "source": "run",
    }
    assert plan.start_folder(experiment, "heir") == "results/models/heir"
    assert experiment.base_model("heir") == "heir"
    # What the run was trained on may be held out here.
    assert experiment.starts("heir") == ["tuned"]
    assert {*experiment.trained_by("heir")} == {*experiment.trained_by("tuned"), "judged"}
    texts = {
        "datasets.reviews": REVIEWS["datasets.reviews"],
        "models.heir.classes_of": "reviews",
        "runs.heir.dataset": "reviews",
    }
    assert plan.task(experiment_with(PAIRS | HEIR | texts), "heir") == "classification"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"models.heir.run": "tunedd"}, "models.heir.run: got tunedd, expected a name under runs"),
        ({"models.heir.run": "judge"}, "models.heir.run: got judge, which is on labelled text"),
        (
            {"runs.tuned.adapter": {"rank": 4}, "runs.tuned.export": {"merge_adapter": False}},
            "models.heir.run: run tuned exports only its adapter; set export.merge_adapter: true",
        ),
        ({"models.heir.run": "heir"}, "models.heir.run: got heir, which is on labelled text"),
        ({"models.heir.classes_of": "modules"}, "got modules, which has text, expected labelled"),
    ],
)
def test_a_model_is_made_of_a_whole_language_model(values: dict[str, Any], expected: str) -> None:
    found = faults(PAIRS | HEIR | values)
    assert any(expected in line for line in found), found


REVIEWS: dict[str, Any] = {
    "datasets.reviews": {"source": "files", "path": "x", "format": "classification"},
    "models.reviewer": HUB | {"classes_of": "reviews"},
}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"runs.judge.reward": {"center_rewards_coefficient": -1}}, "center_rewards_coefficient"),
        ({"runs.judge.model": "tiny"}, "or set models.tiny.classes_of: judged"),
        (
            REVIEWS | {"runs.judge.model": "reviewer"},
            "runs.judge.model: got a model for classification, but dataset judged is for reward; "
            "choose another model, or set models.reviewer.classes_of: judged",
        ),
        (
            REVIEWS | {"runs.judge.dataset": {"judged": 1, "reviews": 1}},
            "runs.judge.dataset: datasets of different tasks can't be mixed",
        ),
        ({"runs.judge.generate.metrics": ["chrf"]}, "generate.metrics: is for language models"),
        ({"runs.judge.benchmarks.tasks": ["x"]}, "benchmarks.tasks: is for language models"),
        ({"runs.judge.gguf": {}}, "runs.judge.gguf: is for language models"),
        ({"runs.judge.adapter": {"quantize_base": "8bit"}}, "quantize_base: is for language"),
        ({"datasets.judged.problem_type": "regression"}, "problem_type: only for format"),
    ],
)
def test_what_can_not_be_is_refused(values: dict[str, Any], expected: str) -> None:
    found = faults(PAIRS | values)
    assert any(expected in line for line in found), found
