"""The stages of reward models, from files of pairs to scores, samples and exports."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classified import DECODERS, ENCODERS, ROWS, write_rows
from in_one_process import make_all
from pages import Parsed, runs_in
from peft import AutoPeftModelForSequenceClassification
from rewarded import TEMPLATE, samples_of, talks, text_pairs, write_judge
from transformers import AutoTokenizer, pipeline

from moray.corpus.dataset import halves, messages_of, read_documents
from moray.stages.report import report

pytestmark = pytest.mark.release

TRAIN = {
    "launcher": "torchrun",
    "max_steps": 40,
    "global_batch_size": 16,
    "learning_rate": 3e-3,
    "precision": "fp32",
}
CENTRED = {"center_rewards_coefficient": 0.01}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The results of an encoder on texts, and of adapters of a decoder on texts and messages."""
    folder = tmp_path_factory.mktemp("rewards")
    write_rows(folder / "data/texts.jsonl", text_pairs())
    write_rows(folder / "data/talks.jsonl", talks())
    write_judge(folder / "given/bert", ENCODERS["BERT"]())
    write_judge(folder / "given/llama", DECODERS["Llama"]())
    rows = {**ROWS, "format": "reward"}
    config: dict[str, Any] = {
        "datasets": {name: {**rows, "path": f"data/{name}.jsonl"} for name in ("texts", "talks")},
        "models": {
            name: {"source": "path", "path": f"given/{name}", "classes_of": "texts"}
            for name in ("bert", "llama")
        },
        "defaults": {
            "data": {"block_size": 20},
            "train": TRAIN,
            "ray": {"num_workers": 1},
            "evaluate": {"bootstrap_samples": 100},
            "generate": {"num_samples": 8},
        },
        "runs": {
            "texts": {"model": "bert", "dataset": "texts", "reward": CENTRED},
            "talks": {
                "model": "llama",
                "dataset": "talks",
                "adapter": {"rank": 4},
                "data": {"chat_template": TEMPLATE},
            },
            "alone": {
                "model": "llama",
                "dataset": "texts",
                "adapter": {"rank": 4},
                "export": {"merge_adapter": False},
            },
            # From a run, whose output layer says something.
            "again": {"model": {"run": "texts"}, "dataset": "texts", "train": {"max_steps": 4}},
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_all(folder, config)
        yield folder / "results"


def documents_of(results: Path, dataset: str) -> list[Any]:
    return list(chain.from_iterable(read_documents(results / f"datasets/{dataset}/test.parquet")))


def scores_of(results: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / f"runs/{run}/eval.json").read_text())
    return found


def value(scores: dict[str, Any], metric: str, of: str = "tuned") -> float:
    return float(scores[of][metric]["value"])


def check_scores(scores: dict[str, Any], rewards: Any, documents: list[Any], weight: float) -> None:
    """Hold the scores of a tuned model to the rewards that others compute, shape (pairs, 2)."""
    margins = np.array([one["margin"] or 0 for one in documents])
    difference = rewards[:, 0] - rewards[:, 1]
    losses = np.log1p(np.exp(margins - difference)) + weight * rewards.sum(1) ** 2
    assert scores["pairs"] == len(documents)
    assert value(scores, "accuracy") == pytest.approx(np.mean(difference > 0))
    assert value(scores, "margin") == pytest.approx(difference.mean(), rel=1e-4)
    assert value(scores, "loss") == pytest.approx(losses.mean(), rel=1e-4)
    assert scores["tuned"]["accuracy"]["low"] > 0.7


@pytest.mark.parametrize("function", [None, "none"])
def test_rewards_of_texts_are_those_of_the_pipeline(function: str | None, results: Path) -> None:
    documents = documents_of(results, "texts")
    judge = pipeline("text-classification", str(results / "runs/texts/model"))
    texts = [one["prompt"] + one[key] for one in documents for key in ("chosen", "rejected")]
    keys = {"function_to_apply": function} if function else {}
    rewards = np.array([one["score"] for one in judge(texts, batch_size=8, **keys)]).reshape(-1, 2)
    check_scores(scores_of(results, "texts"), rewards, documents, 0.01)
    by_text = dict(zip(texts, rewards.ravel(), strict=True))
    samples = samples_of(results / "runs/texts")
    assert len(samples) == 8
    for sample in samples:
        assert sample["base"] is None
        for key in ("chosen", "rejected"):
            text = sample["prompt"] + sample[key]
            assert sample["tuned"][key] == pytest.approx(by_text[text], abs=1e-3)


def test_rewards_of_conversations_are_those_of_the_pipeline_by_the_exported_template(
    results: Path,
) -> None:
    """Of a decoder with a merged adapter, in batches, and so with padding."""
    documents, folder = documents_of(results, "talks"), results / "runs/talks/model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [
        tokenizer.apply_chat_template(messages_of(half), tokenize=False)
        for one in documents
        for half in halves(one)
    ]
    judge = pipeline("text-classification", str(folder))
    said = judge(texts, batch_size=8, add_special_tokens=False)
    rewards = np.array([one["score"] for one in said]).reshape(-1, 2)
    check_scores(scores_of(results, "talks"), rewards, documents, 0)
    sample = samples_of(results / "runs/talks")[0]
    assert sample["prompt"].startswith("user: ")
    assert sample["chosen"].startswith("assistant: ")


def test_an_adapter_alone_loads_by_peft_with_its_output_layer(results: Path) -> None:
    documents, folder = documents_of(results, "texts"), results / "runs/alone/model"
    assert not (folder / "config.json").exists()
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["score"]
    model = AutoPeftModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rewards = []
    for one in documents:
        texts = [one["prompt"] + one[key] for key in ("chosen", "rejected")]
        inputs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            rewards.append(model(**inputs).logits[:, 0].tolist())
    check_scores(scores_of(results, "alone"), np.array(rewards), documents, 0)


def test_a_base_with_a_new_output_layer_gives_all_texts_one_reward(results: Path) -> None:
    scores, documents = scores_of(results, "texts"), documents_of(results, "texts")
    assert value(scores, "accuracy", "base") == 0.5
    assert value(scores, "margin", "base") == 0
    margins = np.array([one["margin"] or 0 for one in documents])
    assert value(scores, "loss", "base") == pytest.approx(np.log1p(np.exp(margins)).mean())
    assert scores["base_is"] == "a model that gives all texts one reward"
    lengths = [[len(one[key].split()) for key in ("chosen", "rejected")] for one in documents]
    longer = np.mean([(np.sign(a - b) + 1) / 2 for a, b in lengths])
    assert scores["longer_is_chosen"]["value"] == pytest.approx(longer)
    # But the base of the next run is the first one; the loss of its training isn't.
    again = scores_of(results, "again")
    for metric in ("accuracy", "margin"):
        assert again["base"][metric] == scores["tuned"][metric]
    assert "base_is" not in again
    assert (
        samples_of(results / "runs/again")[0]["base"]
        == samples_of(results / "runs/texts")[0]["tuned"]
    )


def test_each_stage_is_compared_with_plain_transformers(results: Path) -> None:
    for run in ("texts", "talks", "alone", "again"):
        proof = json.loads((results / f"runs/{run}/model/proof.json").read_text())["comparisons"]
        compared = {one["what"] for one in proof if one["skipped"] is None}
        assert {
            "loss before the first step",
            "loss of the exported model on validation rows",
        } <= compared
        evaluated = [one["what"] for one in scores_of(results, run)["proof"]]
        bases = ["loss of base on held-out pairs"] if run == "again" else []
        assert evaluated == [*bases, "loss of tuned on held-out pairs"]


def test_the_report_says_what_base_is_and_shows_pairs(results: Path, tmp_path: Path) -> None:
    report(results, tmp_path / "report.html", {"runs": ["texts", "talks", "again"]})
    pages = runs_in((tmp_path / "report.html").read_text())
    texts = {name: Parsed(run["html"]).text for name, run in pages.items()}
    assert "base stands for a model that gives all texts one reward" in texts["texts"]
    assert "stands for" not in texts["again"]
    for name, page in texts.items():
        assert "The chosen text is the longer one in" in page
        assert samples_of(results / "runs" / name)[0]["chosen"] in page
