"""A run's model card with its evaluation, as the hub's library reads it."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedTokenizerFast

from moray.stages.card import card
from moray.tasks.language.scratch import save_llama

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags: [moray]
---

# tuned

Fine-tuned.
"""


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.5, "high": value + 0.5}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "README.md").write_text(CARD)
    (folder / "lineage.json").write_text(
        json.dumps({"training": {}, "inputs": {"results/base": "0123abcd"}})
    )
    return folder


def written(model: Path, *benchmarks: Path, **facts: Any) -> ModelCard:
    scores = {
        "confidence": 0.9,
        "base": {"loss": figure(3.0), "accuracy": figure(0.25)},
        "tuned": {"loss": figure(2.0), "accuracy": figure(0.5)},
        **facts,
    }
    file, output = model.with_name("eval.json"), model.with_name("README.md")
    file.write_text(json.dumps(scores))
    cfg = {"run": "tuned", "datasets": ["chats", "docs"], "place": str(model)}
    card(model, file, [*benchmarks], output, cfg)
    found: ModelCard = ModelCard.load(output)
    return found


def test_the_evaluation_is_in_the_form_of_the_hub(model: Path) -> None:
    data = written(model, documents=1234).data
    assert isinstance(data, ModelCardData)
    assert (data.library_name, data.model_name) == ("transformers", "tuned")
    assert data.eval_results is not None
    assert [
        (each.metric_type, each.metric_value, each.dataset_name, each.dataset_split)
        for each in data.eval_results
    ] == [
        ("loss", 2.0, "chats and docs", "test"),
        ("accuracy", 0.5, "chats and docs", "test"),
    ]
    assert {each.task_type for each in data.eval_results} == {"text-generation"}
    assert data.eval_results[0].metric_config == "90% interval: [1.5, 2.5]"


@pytest.mark.parametrize("unit", ["documents", "pairs", "images"])
def test_the_text_compares_base_and_run_and_shows_the_lineage(unit: str, model: Path) -> None:
    text = written(model, **{unit: 1234}).text
    assert text.startswith("\n# tuned\n\nFine-tuned.\n\n## Usage\n")
    assert f"On 1,234 {unit} of the test split; in brackets, 90% confidence intervals." in text
    assert "| loss | 3 [2.5, 3.5] | 2 [1.5, 2.5] |\n" in text
    assert "| results/base | `0123abcd` |\n" in text
    # The card in the folder is the one that its manifest lists.
    assert (model / "README.md").read_text() == CARD


def usage(card: ModelCard) -> str:
    return card.text.partition("```python\n")[2].partition("```")[0]


def test_the_usage_runs(
    model: Path,
    scratch: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_llama(model, tokenizer, scratch)
    for template in ("", "{% for message in messages %}{{ message.content }}{% endfor %}"):
        if template:
            (model / "chat_template.jinja").write_text(template)
        exec(usage(written(model, documents=1234)), {})
        asked = "[{'role': 'user', 'content': 'Who are you?'}, " if template else "Once upon a time"
        assert asked in capsys.readouterr().out


def test_the_text_says_what_of_the_test_split_was_trained_on(model: Path) -> None:
    found = {"dataset": "chats", "split": "test", "documents": 10, "trained": 6, "related": 0}
    found |= {"by": "docs", "runs": ["base"]}
    text = written(model, documents=1234, overlaps=[found]).text
    line = "6 of 10 test documents of chats were trained on, in docs (run base).\n"
    assert f"confidence intervals.\n{line}\n| | before" in text


def test_benchmarks_are_in_the_text_and_in_the_form_of_the_hub(model: Path) -> None:
    file = model.with_name("benchmarks.json")
    figures = {"base": {"acc": figure(0.25)}, "tuned": {"acc": figure(0.75)}}
    record = {"confidence": 0.8, "harness": "0.4.13", "tasks": {"words": figures}}
    file.write_text(json.dumps(record))
    found = written(model, file, documents=1234)
    assert isinstance(found.data, ModelCardData)
    assert found.data.eval_results is not None
    last = found.data.eval_results[-1]
    assert (last.dataset_name, last.metric_type, last.metric_value) == ("words", "acc", 0.75)
    assert last.metric_config == "80% interval: [0.25, 1.25]"
    assert "By lm-evaluation-harness 0.4.13; in brackets, 80% confidence" in found.text
    assert "| words: acc | 0.25 [-0.25, 0.75] | 0.75 [0.25, 1.25] |\n" in found.text
    assert "Benchmarks" not in written(model, documents=1234).text
