"""The stages of runs on words with tags, from files of rows to scores, samples and exports."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classified import DECODERS, ENCODERS, write_rows
from in_one_process import make_all
from pages import Parsed, runs_in
from sklearn import metrics
from tagged import ROWS, TAGS, sentences, write_tagger
from transformers import pipeline

from moray.corpus.dataset import read_documents, tags_of, words_of
from moray.provenance.manifest import read_manifest
from moray.rows.store import StoredRows
from moray.stages.report import report
from moray.tasks.token_classification.scores import Entities

pytestmark = pytest.mark.release

TRAIN = {
    "launcher": "torchrun",
    "max_steps": 40,
    "global_batch_size": 16,
    "learning_rate": 3e-3,
    "precision": "fp32",
}
# Cut before the ends of many texts.
SIZE = 10


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Results of an encoder, and of a decoder with an adapter on tags that aren't of entities."""
    folder = tmp_path_factory.mktemp("tagged")
    rows = sentences()
    write_rows(folder / "data/names.jsonl", rows)
    parts = [{"words": row["tokens"], "ner_tags": [tag[-1] for tag in row["tags"]]} for row in rows]
    write_rows(folder / "data/parts.jsonl", parts)
    write_tagger(folder / "given/names", ENCODERS["BERT"]())
    write_tagger(folder / "given/parts", DECODERS["Llama"]())
    names = ("names", "parts")
    config: dict[str, Any] = {
        "datasets": {name: {**ROWS, "path": f"data/{name}.jsonl"} for name in names},
        "models": {
            name: {"source": "path", "path": f"given/{name}", "classes_of": name} for name in names
        },
        "defaults": {
            "data": {"block_size": SIZE},
            "train": TRAIN,
            "ray": {"num_workers": 1},
            "evaluate": {"bootstrap_samples": 100},
            "generate": {"num_samples": 8},
        },
        "runs": {name: {"model": name, "dataset": name} for name in names},
    }
    config["runs"]["parts"] |= {"adapter": {"rank": 4}, "export": {"merge_adapter": False}}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_all(folder, config)
        yield folder / "results"


def texts_of(results: Path, dataset: str) -> list[Any]:
    return list(chain.from_iterable(read_documents(results / f"datasets/{dataset}/test.parquet")))


def scores_of(results: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / f"runs/{run}/eval.json").read_text())
    return found


def said_by_pipeline(results: Path, run: str) -> list[list[str]]:
    """The tags of words, those of their first tokens, by transformers' pipeline with the export."""
    tagger = pipeline("token-classification", str(results / f"runs/{run}/model"), ignore_labels=[])
    tagger.tokenizer.model_max_length = SIZE
    said = []
    for words in map(words_of, texts_of(results, run)):
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1].tolist()
        by_start = {one["start"]: one["entity"] for one in tagger(" ".join(words))}
        # What is cut isn't there.
        said.append([by_start.get(start, "O") for start in starts])
    return said


def truth_of(results: Path, run: str) -> list[list[str]]:
    return [*map(tags_of, texts_of(results, run))]


def flat(texts: list[list[str]]) -> list[str]:
    return [*chain.from_iterable(texts)]


@pytest.mark.parametrize("run", ["names", "parts"])
def test_words_have_the_tags_of_the_pipeline_with_the_export(run: str, results: Path) -> None:
    scores, truth, said = (
        scores_of(results, run),
        truth_of(results, run),
        said_by_pipeline(results, run),
    )
    right = metrics.accuracy_score(flat(truth), flat(said))
    assert scores["tuned"]["accuracy"]["value"] == pytest.approx(right)
    assert scores["words"] == len(flat(said))
    assert scores["words_without_tokens"] > 0
    texts = [" ".join(words_of(one)) for one in texts_of(results, run)]
    samples = [json.loads(line) for line in (results / f"runs/{run}/samples.jsonl").open()]
    assert len(samples) == 8
    for sample in samples:
        assert sample["tuned"] == said[texts.index(sample["text"])]


def test_scores_are_of_entities(results: Path) -> None:
    scores, texts = (
        scores_of(results, "names"),
        (truth_of(results, "names"), said_by_pipeline(results, "names")),
    )
    numbers = [[np.array([TAGS.index(tag) for tag in text]) for text in some] for some in texts]
    right, there, found = Entities(TAGS).counts(*numbers).sum((1, 2))
    tuned = {name: one["value"] for name, one in scores["tuned"].items()}
    assert tuned["precision"] == pytest.approx(right / found)
    assert tuned["recall"] == pytest.approx(right / there)
    assert tuned["f1"] == pytest.approx(2 * right / (there + found))
    assert sum(scores["by_label"]["entities"].values()) == there
    f1 = scores["by_label"]["f1"]["tuned"]
    assert all(f1[name]["low"] <= f1[name]["value"] <= f1[name]["high"] for name in ("LOC", "PER"))


def test_scores_of_tags_without_entities_are_of_words(results: Path) -> None:
    scores, said = scores_of(results, "parts"), flat(said_by_pipeline(results, "parts"))
    assert scores["headline"] == "accuracy"
    assert scores["label_names"] == ["C", "O", "R"]
    truth = flat(truth_of(results, "parts"))
    for kind in ("macro", "weighted"):
        f1 = metrics.f1_score(truth, said, average=kind)
        assert scores["tuned"][f"f1_{kind}"]["value"] == pytest.approx(f1)
    assert scores["by_label"]["words"]["C"] == truth.count("C")


def test_a_base_with_a_new_output_layer_is_the_most_frequent_tag(results: Path) -> None:
    scores = scores_of(results, "names")
    tags = flat(truth_of(results, "names"))
    base = {name: one["value"] for name, one in scores["base"].items()}
    assert base["accuracy"] == pytest.approx(np.mean([tag == "O" for tag in tags]))
    store = next((results / "labelled").glob("names-names-*"))
    prior = np.array(read_manifest(store)["prior"])
    chances = np.log(prior / prior.sum())
    rows = StoredRows(store, "test").rows["labels"]
    assert base["loss"] == pytest.approx(-np.mean(chances[rows[rows > 0].astype(int) - 1]))
    assert (base["precision"], base["recall"], base["f1"]) == (0, 0, 0)
    assert (scores["base_is"], scores["headline"]) == ("the most frequent tag", "f1")
    assert scores["difference"]["f1"]["low"] > 0.2


def test_an_export_names_its_tags_and_its_task(results: Path) -> None:
    folder = results / "runs/names/model"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert list(config["id2label"].values()) == [*TAGS]
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: token-classification" in card
    assert "nats per word" in card
    adapter = json.loads((results / "runs/parts/model/adapter_config.json").read_text())
    assert adapter["task_type"] == "TOKEN_CLS"


def test_each_stage_is_compared_with_plain_transformers(results: Path) -> None:
    for run in ("names", "parts"):
        proof = json.loads((results / f"runs/{run}/model/proof.json").read_text())["comparisons"]
        compared = {one["what"] for one in proof if one["skipped"] is None}
        assert {
            "loss before the first step",
            "loss of the exported model on validation rows",
        } <= compared
        evaluated = [one["what"] for one in scores_of(results, run)["proof"]]
        assert evaluated == ["loss of tuned on held-out texts"]


def test_the_report_shows_types_and_tagged_words(results: Path, tmp_path: Path) -> None:
    report(results, tmp_path / "report.html", {"runs": ["names", "parts"]})
    pages = {
        name: run["html"] for name, run in runs_in((tmp_path / "report.html").read_text()).items()
    }
    texts = {name: Parsed(page).text for name, page in pages.items()}
    assert "base stands for the most frequent tag" in texts["names"]
    assert "Entities" in texts["names"]
    sample = json.loads((results / "runs/names/samples.jsonl").open().readline())
    assert sample["text"] in texts["names"]
    place = next(place for place, tag in enumerate(sample["tuned"]) if tag != "O")
    assert f"{sample['tokens'][place]} {sample['tuned'][place]}" in texts["names"]
