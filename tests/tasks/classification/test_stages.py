"""The stages of runs on labelled texts, from files of rows to scores, samples and exports."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classified import (
    DECODERS,
    ENCODERS,
    ROWS,
    degree,
    opinions,
    things,
    with_labels,
    write_classifier,
    write_rows,
)
from in_one_process import make_all
from pages import Parsed, runs_in
from sklearn import metrics
from transformers import pipeline

from moray.corpus.dataset import read_documents
from moray.provenance.manifest import read_manifest
from moray.stages.report import report

pytestmark = pytest.mark.long

KINDS: dict[str, Any] = {
    "opinions": opinions(),
    "things": with_labels(things),
    "degrees": with_labels(degree),
}
TRAIN = {
    "launcher": "torchrun",
    "max_steps": 40,
    "global_batch_size": 16,
    "learning_rate": 3e-3,
    "precision": "fp32",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The results of a run of each problem; the second one exports only its adapter."""
    folder = tmp_path_factory.mktemp("labelled")
    for name, rows in KINDS.items():
        write_rows(folder / f"data/{name}.jsonl", rows)
    write_classifier(folder / "given/bert", ENCODERS["BERT"]())
    write_classifier(folder / "given/llama", DECODERS["Llama"]())
    models = {"opinions": "bert", "things": "llama", "degrees": "llama"}
    config = {
        "datasets": {name: {**ROWS, "path": f"data/{name}.jsonl"} for name in KINDS},
        "models": {
            name: {"source": "path", "path": f"given/{model}", "classes_of": name}
            for name, model in models.items()
        },
        "defaults": {
            "data": {"block_size": 16},
            "train": TRAIN,
            "ray": {"num_workers": 1},
            "evaluate": {"bootstrap_samples": 100},
            "generate": {"num_samples": 8},
        },
        "runs": {name: {"model": name, "dataset": name} for name in KINDS},
    }
    runs: Any = config["runs"]
    runs["things"] |= {"adapter": {"rank": 4}, "export": {"merge_adapter": False}}
    runs["degrees"] |= {"adapter": {"rank": 4}}
    # From a run, whose output layer says something.
    runs["again"] = {"model": {"run": "opinions"}, "dataset": "opinions"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_all(folder, config)
        yield folder / "results"


def texts_of(results: Path, dataset: str) -> list[Any]:
    return list(chain.from_iterable(read_documents(results / f"datasets/{dataset}/test.parquet")))


def scores_of(results: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / f"runs/{run}/eval.json").read_text())
    return found


def value(scores: dict[str, Any], metric: str, of: str = "tuned") -> float:
    return float(scores[of][metric]["value"])


def said_of(results: Path, run: str, dataset: str) -> list[list[dict[str, Any]]]:
    """What transformers' pipeline says of the test texts with an exported model."""
    classify = pipeline("text-classification", str(results / f"runs/{run}/model"), top_k=None)
    return list(classify([one["text"] for one in texts_of(results, dataset)]))


@pytest.mark.parametrize("run", ["opinions", "again"])
def test_scores_of_classes_are_those_of_the_pipeline_with_the_export(
    run: str, results: Path
) -> None:
    scores, said = scores_of(results, run), said_of(results, run, "opinions")
    labels = [one["label"] for one in texts_of(results, "opinions")]
    predictions = [one[0]["label"] for one in said]
    truth = [int(label) for label in labels]
    odds = [{one["label"]: one["score"] for one in each}["1"] for each in said]
    assert value(scores, "accuracy") == pytest.approx(metrics.accuracy_score(labels, predictions))
    f1 = metrics.f1_score(labels, predictions, average="macro")
    assert value(scores, "f1_macro") == pytest.approx(f1)
    assert value(scores, "auroc") == pytest.approx(metrics.roc_auc_score(truth, odds), abs=1e-3)
    confusion = metrics.confusion_matrix(labels, predictions)
    assert scores["by_class"]["tuned"]["confusion"] == confusion.tolist()
    assert value(scores, "accuracy") > value(scores, "accuracy", "base")
    samples = [json.loads(line) for line in (results / f"runs/{run}/samples.jsonl").open()]
    assert len(samples) == 8
    by_text = {
        one["text"]: each for one, each in zip(texts_of(results, "opinions"), said, strict=True)
    }
    for sample in samples:
        first = by_text[sample["text"]][0]
        assert sample["tuned"] == first["label"]
        assert sample["tuned_probability"] == pytest.approx(first["score"], abs=1e-3)


def test_a_base_with_a_new_output_layer_is_the_most_frequent_class(results: Path) -> None:
    scores = scores_of(results, "opinions")
    counts = read_manifest(next((results / "labelled").glob("opinions-*")))["prior"]
    labels = [int(one["label"]) for one in texts_of(results, "opinions")]
    share = np.mean(np.array(labels) == np.argmax(counts))
    assert value(scores, "accuracy", "base") == pytest.approx(share)
    shares = np.array(counts) / sum(counts)
    assert value(scores, "loss", "base") == pytest.approx(-np.log(shares[labels]).mean(), rel=1e-5)
    assert value(scores, "auroc", "base") == 0.5
    assert scores["base_is"] == "the most frequent label"
    # But the base of the next run is the first one.
    again = scores_of(results, "again")
    assert again["base"] == scores["tuned"]
    assert "base_is" not in again


def test_several_labels_are_those_of_the_pipeline_with_an_adapter(results: Path) -> None:
    """The folder has only the adapter and its output layer; PEFT loads them on the base."""
    folder = results / "runs/things/model"
    assert (folder / "adapter_config.json").is_file()
    assert not (folder / "config.json").exists()
    scores, said = scores_of(results, "things"), said_of(results, "things", "things")
    named = [json.loads(one["label"]) for one in texts_of(results, "things")]
    truth = [[name in labels for name in ("film", "play")] for labels in named]
    chances = [{one["label"]: one["score"] for one in each} for each in said]
    predictions = [[each[name] > 0.5 for name in ("film", "play")] for each in chances]
    for kind in ("macro", "micro", "weighted"):
        f1 = metrics.f1_score(truth, predictions, average=kind)
        assert value(scores, f"f1_{kind}") == pytest.approx(f1)
    each = metrics.f1_score(truth, predictions, average=None)
    found = [scores["by_label"]["f1"]["tuned"][name] for name in ("film", "play")]
    assert [one["value"] for one in found] == pytest.approx(each)
    assert all(one["low"] <= one["value"] <= one["high"] for one in found)
    assert value(scores, "f1_macro") > value(scores, "f1_macro", "base")
    sample = json.loads((results / "runs/things/samples.jsonl").open().readline())
    assert sorted(sample) == ["base", "label", "text", "tuned"]
    assert isinstance(sample["tuned"], list)


def test_numbers_are_those_of_the_pipeline_with_a_merged_adapter(results: Path) -> None:
    scores, texts = scores_of(results, "degrees"), texts_of(results, "degrees")
    classify = pipeline("text-classification", str(results / "runs/degrees/model"))
    # By the name of the problem, it applies no function.
    said = [one["score"] for one in classify([one["text"] for one in texts])]
    truth = [float(one["label"]) for one in texts]
    assert value(scores, "loss") == pytest.approx(
        np.mean(np.square(np.subtract(said, truth))), rel=1e-4
    )
    assert value(scores, "pearson") == pytest.approx(np.corrcoef(said, truth)[0, 1], rel=1e-4)
    assert value(scores, "pearson") > 0.5
    assert (value(scores, "pearson", "base"), scores["base_is"]) == (0.0, "the mean")
    mean = read_manifest(next((results / "labelled").glob("degrees-*")))["prior"]
    assert value(scores, "loss", "base") == pytest.approx(np.mean((np.array(truth) - mean) ** 2))
    sample = json.loads((results / "runs/degrees/samples.jsonl").open().readline())
    assert sample["tuned"] == pytest.approx(
        said[[one["text"] for one in texts].index(sample["text"])], abs=1e-3
    )


def test_each_stage_is_compared_with_plain_transformers(results: Path) -> None:
    for run in ("opinions", "things", "degrees", "again"):
        proof = json.loads((results / f"runs/{run}/model/proof.json").read_text())["comparisons"]
        compared = {one["what"] for one in proof if one["skipped"] is None}
        assert {
            "loss before the first step",
            "loss of the exported model on validation rows",
        } <= compared
        evaluated = [one["what"] for one in scores_of(results, run)["proof"]]
        bases = ["loss of base on held-out texts"] if run == "again" else []
        assert evaluated == [*bases, "loss of tuned on held-out texts"]


def test_the_report_says_what_base_is_and_shows_labels_and_samples(
    results: Path, tmp_path: Path
) -> None:
    report(results, tmp_path / "report.html", {"runs": ["opinions", "things", "degrees", "again"]})
    pages = {
        name: run["html"] for name, run in runs_in((tmp_path / "report.html").read_text()).items()
    }
    texts = {name: Parsed(page).text for name, page in pages.items()}
    assert "base stands for the most frequent label" in texts["opinions"]
    assert "base stands for the mean" in texts["degrees"]
    assert "stands for" not in texts["again"]
    assert "Confusion matrix" in texts["opinions"]
    assert "F1 of each label" in texts["things"]
    for name, page in texts.items():
        sample = json.loads((results / f"runs/{name}/samples.jsonl").open().readline())
        assert sample["text"] in page
