"""Datasets of axolotl and LLaMA-Factory."""

import json
from pathlib import Path
from typing import Any

import pytest
from extras.importing.foreign_configs import AXOLOTL, LLAMA_FACTORY, at, imported, refusals, written

from moray.extras.importing.convert import convert


@pytest.mark.parametrize(
    ("entry", "section"),
    [
        ({"path": "owner/rows", "type": "alpaca"}, {"format": "instruction", "split": "train"}),
        (
            {"path": "./rows.jsonl", "type": "completion", "field": "body"},
            {"source": "files", "format": "text", "columns": {"text": "body"}},
        ),
        (
            {
                "path": "owner/rows",
                "type": "chat_template",
                "field_messages": "talk",
                "message_property_mappings": {"role": "from", "content": "value"},
            },
            {"format": "messages", "columns": {"messages": "talk"}},
        ),
        (
            {
                "path": "owner/rows",
                "type": "chat_template",
                "message_field_role": "from",
                "message_field_content": "value",
                "field_tools": "functions",
            },
            {"format": "messages", "columns": {"tools": "functions"}},
        ),
        ({"path": "owner/rows", "type": "sharegpt"}, {"format": "messages"}),
        (
            {"path": "owner/rows", "type": "pretrain", "skip": 100},
            {"format": "text", "split": "train[100:]"},
        ),
        (
            {"path": "owner/rows", "type": "alpaca", "data_files": "a.json", "revision": "v1"},
            {"source": "url", "url": ["hf://datasets/owner/rows@v1/a.json"]},
        ),
        (
            {"path": "./rows.json", "type": "alpaca", "name": "main", "revision": "v1"},
            {"source": "files", "path": "rows.json"},
        ),
        # A file's name, even where the file isn't.
        (
            {"path": "rows.jsonl", "type": "alpaca", "ds_type": "json"},
            {"source": "files", "path": "rows.jsonl"},
        ),
        # How files of no repository are read.
        (
            {"path": "json", "data_files": "rows.jsonl", "type": "alpaca", "ds_type": "json"},
            {"source": "files", "path": "rows.jsonl"},
        ),
        (
            {"path": "json", "data_files": ["https://host/a.jsonl"], "type": "alpaca"},
            {"source": "url", "url": ["https://host/a.jsonl"]},
        ),
    ],
)
def test_datasets_of_axolotl(entry: Any, section: Any) -> None:
    made = imported(AXOLOTL | {"datasets": [entry]})["datasets"]["theirs-1"]
    assert section.items() <= made.items()
    assert made["validation_share"] == 0.1


def test_a_branch_of_a_dataset_has_to_be_pinned_by_hand() -> None:
    entry = {"path": "owner/rows", "type": "completion", "revision": "v2"}
    head = convert(written(AXOLOTL | {"datasets": [entry]})).partition("datasets:\n")[0]
    assert "# - datasets.0.revision: a whole commit hash is needed" in head


def test_what_of_a_conversation_axolotl_trains() -> None:
    entry = {"path": "owner/rows", "type": "chat_template", "train_on_eos": "turn"}
    usual = entry | {"roles_to_train": ["assistant"], "drop_system_message": True}
    assert imported(AXOLOTL | {"datasets": [usual]})["datasets"]["theirs-1"]["system"] is False
    for key, value in (
        ("roles_to_train", ["user"]),
        ("roles_to_train", []),
        ("train_on_eos", "all"),
    ):
        assert f"datasets.0.{key} (" in refusals(AXOLOTL | {"datasets": [entry | {key: value}]})


def test_pairs_of_axolotl_have_half_a_row_each() -> None:
    entry = {"path": "owner/pairs", "type": "chat_template.default", "field_messages": "talk"}
    overlay = imported(AXOLOTL | {"rl": "dpo", "datasets": [entry]})
    assert overlay["datasets"]["theirs-1"]["columns"] == {"prompt": "talk"}
    assert at(overlay, "data.block_size") == 1024
    # Rows of another type would be trained as answers.
    assert "datasets (rl: dpo" in refusals(AXOLOTL | {"rl": "dpo"})


def test_reward_models_of_axolotl() -> None:
    entry = {"path": "owner/pairs", "type": "bradley_terry.chat_template"}
    theirs = AXOLOTL | {
        "model_type": "AutoModelForSequenceClassification",
        "num_labels": 1,
        "reward_model": True,
        "center_rewards_coefficient": 0.01,
        "datasets": [entry],
    }
    overlay = imported(theirs)
    assert overlay["datasets"]["theirs-1"]["format"] == "reward"
    assert overlay["datasets"]["theirs-1"]["columns"] == {"prompt": "input"}
    # Their rows have a column of this name, and text has no place for it.
    assert overlay["datasets"]["theirs-1"]["system"] is False
    assert next(iter(overlay["models"].values()))["classes_of"] == "theirs-1"
    assert at(overlay, "data.block_size") == 512
    assert at(overlay, "reward.center_rewards_coefficient") == 0.01
    for change, refused in (
        ({"num_labels": 2}, "num_labels (2: only 1"),
        ({"datasets": AXOLOTL["datasets"]}, "datasets (reward_model is for pairs"),
        ({"reward_model": False}, "model_type (AutoModelForSequenceClassification"),
        ({"datasets": [entry, entry | {"path": "owner/more"}]}, "trained on one dataset"),
        ({"process_reward_model": True}, "process_reward_model ("),
    ):
        assert refused in refusals(theirs | change)


def test_reward_models_of_llama_factory() -> None:
    overlay = imported(LLAMA_FACTORY | {"stage": "rm"})
    (name, dataset), *others = overlay["datasets"].items()
    assert (dataset["format"], others) == ("reward", [])
    assert next(iter(overlay["models"].values()))["classes_of"] == name
    assert at(overlay, "data.block_size") == 512
    assert not at(overlay, "data.packing")


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        ({"rl": "dpo"}, {"loss": "dpo", "beta": 0.1}),
        ({"rl": "dpo", "dpo_loss_type": ["hinge"]}, {"loss": "hinge", "beta": 0.1}),
        # The order in which axolotl reads them.
        ({"rl": "dpo", "rl_beta": 0.2, "trl": {"beta": 0.3}}, {"loss": "dpo", "beta": 0.3}),
        ({"rl": "orpo", "orpo_alpha": 0.2}, {"loss": "orpo", "beta": 0.2}),
    ],
)
def test_losses_of_axolotl(given: Any, loss: Any) -> None:
    entry = {"path": "owner/pairs", "type": "chat_template.argilla"}
    assert at(imported(AXOLOTL | given | {"datasets": [entry]}), "preference") == loss
    assert "dpo_loss_type (sigmoid, sft" in refusals(
        AXOLOTL | {"rl": "dpo", "dpo_loss_type": ["sigmoid", "sft"], "datasets": [entry]}
    )


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("chatml.argilla_chat", {"messages": "completion"}),
        ("llama3.argilla_chat", {"messages": "completion"}),
        (
            {"field_prompt": "question", "field_label": "good"},
            {"prompt": "question", "label": "good"},
        ),
        ({"field_prompt": "prompt", "prompt_format": "{prompt}"}, None),
    ],
)
def test_answers_of_axolotl(kind: Any, columns: Any) -> None:
    given = {"rl": "kto", "rl_beta": 0.5, "kto_desirable_weight": 0.2}
    made = imported(AXOLOTL | given | {"datasets": [{"path": "owner/answers", "type": kind}]})
    section = made["datasets"]["theirs-1"]
    assert (section["format"], section.get("columns")) == ("unpaired-preference", columns)
    weights = {"desirable_weight": 0.2, "undesirable_weight": 1.0}
    assert at(made, "kto") == {"beta": 0.5, **weights}
    assert at(made, "data.block_size") == 2 * AXOLOTL.get("sequence_len", 512)


@pytest.mark.parametrize(
    "kind", ["llama3.ultra", "chat_template.argilla", {"prompt_format": "Q: {prompt}"}]
)
def test_answers_with_a_prompt_of_their_own_are_refused(kind: Any) -> None:
    entry = {"path": "owner/answers", "type": kind}
    said = refusals(AXOLOTL | {"rl": "kto", "datasets": [entry]})
    assert "its rows would be others; chatml.argilla_chat, " in said


def test_answers_of_llama_factory() -> None:
    given = {"stage": "kto", "pref_beta": 0.3, "kto_rejected_weight": 0.5, "dataset": "answers"}
    Path("data").mkdir()
    columns = {"messages": "completion", "kto_tag": "good"}
    entry = {"file_name": "answers.json", "formatting": "sharegpt", "columns": columns}
    Path("data/dataset_info.json").write_text(json.dumps({"answers": entry}))
    made = imported(LLAMA_FACTORY | given)
    section = made["datasets"]["answers"]
    assert section["format"] == "unpaired-preference"
    assert section["columns"] == {"messages": "completion", "label": "good"}
    weights = {"desirable_weight": 1.0, "undesirable_weight": 0.5}
    assert at(made, "kto") == {"beta": 0.3, **weights}
    assert "pref_ftx (the likelihood is" in refusals(LLAMA_FACTORY | given | {"pref_ftx": 0.1})
    del columns["kto_tag"]
    Path("data/dataset_info.json").write_text(json.dumps({"answers": entry}))
    assert "no columns.kto_tag: no counterpart" in refusals(LLAMA_FACTORY | given)


def test_rows_of_their_own_for_validation() -> None:
    rows = {"path": "owner/rows", "type": "completion"}
    given = AXOLOTL | {"datasets": [rows], "test_datasets": [rows | {"split": "test"}]}
    made = imported(given)["datasets"]["theirs-1"]
    assert made["split"] == {"train": "train", "validation": "test"}
    other = given | {"test_datasets": [rows | {"path": "owner/other"}]}
    assert "# - test_datasets: a share of 0.05" in convert(written(other))
    Path("data").mkdir()
    described = {name: {"file_name": f"{name}.json"} for name in ("notes", "held-out")}
    Path("data/dataset_info.json").write_text(json.dumps(described))
    made = imported(LLAMA_FACTORY | {"eval_dataset": "held-out"})["datasets"]["notes"]
    assert made["path"] == {"train": "data/notes.json", "validation": "data/held-out.json"}


def test_a_dataset_that_is_there_twice_is_one_only_if_axolotl_leaves_it_out() -> None:
    rows = [{"path": "owner/rows", "type": "completion"}] * 2
    given = AXOLOTL | {"datasets": rows}
    assert "datasets (one is there twice" in refusals(given)
    once = imported(given | {"dataset_exact_deduplication": True})
    assert [*once["datasets"]] == ["theirs-1"]
    assert at(once, "dataset") == "theirs-1"


def test_pairs_of_text_have_no_chat_template() -> None:
    """LLaMA-Factory renders them; Alpaca's format is text."""
    Path("data").mkdir()
    described = {"notes": {"file_name": "pairs.json", "ranking": True}}
    Path("data/dataset_info.json").write_text(json.dumps(described))
    head = convert(written(LLAMA_FACTORY | {"stage": "dpo"})).partition("datasets:")[0]
    assert "dataset.notes: answers that are text get no chat template" in head


def test_datasets_that_are_not_described_can_be_repositories() -> None:
    made = imported(LLAMA_FACTORY | {"dataset": "owner/rows", "dataset_dir": "ONLINE"})
    assert made["datasets"]["owner-rows"]["repo_id"] == "owner/rows"


def test_datasets_of_llama_factory_are_as_it_describes_them() -> None:
    Path("data").mkdir()
    described = {
        "notes": {"file_name": "notes.json", "columns": {"prompt": "ask", "response": "say"}},
        "talks": {
            "hf_hub_url": "owner/talks",
            "formatting": "sharegpt",
            "columns": {"messages": "conversations"},
        },
    }
    Path("data/dataset_info.json").write_text(json.dumps(described))
    given = LLAMA_FACTORY | {"dataset": "notes, talks", "max_samples": 10}
    overlay = imported(given)
    assert overlay["datasets"]["notes"]["columns"] == {"instruction": "ask", "output": "say"}
    assert overlay["datasets"]["talks"]["split"] == "train[:10]"
    assert overlay["datasets"]["talks"]["format"] == "messages"


def test_a_repository_counts_more_than_a_file_and_other_hubs_have_the_same_rows() -> None:
    Path("data").mkdir()
    both = {"file_name": "notes.json", "hf_hub_url": "owner/notes", "ms_hub_url": "other/notes"}
    Path("data/dataset_info.json").write_text(json.dumps({"notes": both}))
    assert imported(LLAMA_FACTORY)["datasets"]["notes"]["repo_id"] == "owner/notes"
    Path("data/dataset_info.json").write_text(json.dumps({"notes": {"ms_hub_url": "a/b"}}))
    assert "dataset.notes (neither file_name nor hf_hub_url)" in refusals(LLAMA_FACTORY)


def test_names_that_are_alike_here_are_two_datasets() -> None:
    names = ("a_b", "a-b", "数据")
    Path("data").mkdir()
    described = {name: {"hf_hub_url": f"owner/{number}"} for number, name in enumerate(names)}
    Path("data/dataset_info.json").write_text(json.dumps(described))
    overlay = imported(LLAMA_FACTORY | {"dataset": ",".join(names)})
    repositories = {name: section["repo_id"] for name, section in overlay["datasets"].items()}
    assert repositories == {"a-b": "owner/0", "a-b-2": "owner/1", "data": "owner/2"}
    assert at(overlay, "dataset") == dict.fromkeys(repositories, 1.0)
    assert "dataset (a_b is there twice)" in refusals(LLAMA_FACTORY | {"dataset": "a_b,a_b"})


def test_what_decides_the_number_of_rows_is_converted_or_said() -> None:
    entry = {"path": "owner/rows", "type": "completion", "shards": 10}
    assert "datasets.0.shards (a part of the rows" in refusals(AXOLOTL | {"datasets": [entry]})
    Path("data").mkdir()
    described = {
        "notes": {"hf_hub_url": "owner/notes", "num_samples": 100},
        "file": {"file_name": "file.json", "num_samples": 100},
    }
    Path("data/dataset_info.json").write_text(json.dumps(described))
    given = LLAMA_FACTORY | {"dataset": "notes,file"}
    overlay = imported(given)
    assert overlay["datasets"]["notes"]["split"] == "train[:100]"
    fewer = imported(given | {"max_samples": 10})
    assert fewer["datasets"]["notes"]["split"] == "train[:10]"
    head = convert(written(given)).partition("datasets:")[0]
    assert "dataset.notes.num_samples: the first rows instead of random ones" in head
    assert "dataset.file.num_samples: all rows of a file are used" in head
    mixed = given | {"mix_strategy": "interleave_under", "interleave_probs": "0.5"}
    assert "interleave_probs (1 for 2 datasets)" in refusals(mixed)
