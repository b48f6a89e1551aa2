"""Compare what base and tuned say about the words of held-out texts.

A base whose output layer is random says nothing, so it stands for what can be said without reading:
how frequent each tag is among the words to train on. Of words without a token in their row, behind
its end for example, all say nothing: they count as outside of entities.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from moray.evaluate.bootstrap import BootstrapFigures, resampled, units_to_resample, with_intervals
from moray.evaluate.classification import (
    COMPARED,
    Answers,
    Classifier,
    collect_answers,
    compare_losses,
    rows_to_classify,
)
from moray.evaluate.worker import Evaluation
from moray.proofs.comparison import Comparison
from moray.provenance.manifest import read_manifest
from moray.rows.store import Rows, StoredRows, groups_of
from moray.tasks.classification.classifier import load
from moray.tasks.classification.evaluation import classify_with, says_nothing
from moray.tasks.classification.proofs import TOKENS
from moray.tasks.classification.scores import Array, Scorer
from moray.tasks.token_classification import proofs
from moray.tasks.token_classification.scores import Tags, accuracy, mean_loss, of_entities, of_words
from moray.tasks.token_classification.survey import OUTSIDE, spell_entities
from moray.tasks.token_classification.task import make_batch
from moray.tasks.token_classification.tokenize_labelled import read_tags


def answers_to(model: PreTrainedModel, rows: Rows, manifest: dict[str, Any]) -> Tensor:
    """Log-probability of the own tag and number of the likeliest, shape (texts, block size, 2).

    Only those at the first tokens of words mean something.
    """
    batch = make_batch(rows).to(model.device)
    chances = batch.logits(model).log_softmax(-1)
    own = chances.gather(-1, batch.labels.clamp(min=0)[..., None])[..., 0]
    answers = torch.stack([own, chances.argmax(-1).float()], -1)
    return F.pad(answers, (0, 0, 0, manifest["block_size"] - answers.shape[1]))


def _as_they_are(answers: Tensor) -> Tensor:
    return answers


CLASSIFIER = Classifier("texts", load, answers_to, proofs.mean_loss, TOKENS, _as_they_are)


def prior_answers(manifest: Mapping[str, Any], rows: Rows) -> NDArray[np.float32]:
    """What a model that reads nothing answers: the most frequent tag, at the frequency of each."""
    prior = np.array(manifest["prior"], np.float64)
    chances = np.log(prior / prior.sum())
    own = chances[rows["labels"].astype(np.int64) - 1]
    return np.stack([own, np.full_like(own, prior.argmax())], -1).astype(np.float32)


def tags_said(answers: Array, rows: Rows, words: Tags, names: Sequence[str]) -> Tags:
    """The number of the tag that each word is said to have.

    Args:
        words: those of `test.tags`, of the same rows.
    """
    nothing = names.index(OUTSIDE) if OUTSIDE in names else -1
    said = []
    for answer, labels, tags in zip(answers, rows["labels"], words, strict=True):
        own = np.full(len(tags), nothing, np.int64)
        own[tags > 0] = answer[labels > 0, 1]
        said.append(own)
    return said


def loss_of(answers: Array, rows: Rows) -> Scorer:
    """What computes the mean loss of the words of rows."""
    own = rows["labels"] > 0
    return mean_loss(-(answers[..., 0].astype(np.float64) * own).sum(1), own.sum(1))


def true_tags(words: Tags) -> Tags:
    """The number of the tag that each word has."""
    return [np.abs(tags) - 1 for tags in words]


def evaluation(
    models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
) -> Evaluation:
    """Compare models on the texts of one dataset; intervals are over groups of texts, or texts."""
    (store,) = stores
    split, manifest = StoredRows(store, "test"), read_manifest(store)
    names, every = manifest["label_names"], read_tags(store)
    numbers = rows_to_classify(split, cfg["max_documents"])
    rows, words = split.rows[numbers], [every[number] for number in numbers]
    truth = true_tags(words)
    asked = {of: model for of, model in models.items() if of == "tuned" or not says_nothing(model)}
    name, units = units_to_resample(
        {"groups": groups_of(store, "test", numbers), "texts": np.arange(len(numbers))}
    )
    # Numbers without gaps.
    units = np.unique(units, return_inverse=True)[1]
    samples, confidence = cfg["bootstrap_samples"], cfg["confidence"]
    has_entities = spell_entities(names)
    kind = of_entities if has_entities else of_words

    def resample(*measures: Scorer) -> BootstrapFigures:
        def measure(counts: Array) -> dict[str, float]:
            return {key: value for one in measures for key, value in one(counts[units]).items()}

        return resampled(measure, int(units.max()) + 1, samples)

    def scores(results: list[dict[str, Answers]]) -> dict[str, Any]:
        answers = {of: collect_answers([result[of] for result in results]) for of in asked}
        answers = {"base": prior_answers(manifest, rows), **answers}
        whole, each = {}, {}
        for of in ("base", "tuned"):
            said = tags_said(answers[of], rows, words, names)
            figures = kind(names, truth, said)
            loss, right = loss_of(answers[of], rows), accuracy(truth, said)
            whole[of], each[of] = resample(loss, figures.whole, right), resample(figures.each)
        result = {
            "texts": len(rows),
            "words": sum(map(len, truth)),
            "words_without_tokens": int(sum((tags < 0).sum() for tags in words)),
            "label_names": names,
            "confidence": confidence,
            "resampled": name,
            "headline": "f1" if has_entities else "accuracy",
            **with_intervals(whole["base"], whole["tuned"], confidence),
            "by_label": {
                "entities" if has_entities else "words": figures.there,
                "f1": with_intervals(each["base"], each["tuned"], confidence),
            },
        }
        return result if "base" in asked else {**result, "base_is": "the most frequent tag"}

    def proof(results: list[dict[str, Answers]], seconds: float) -> Iterator[Comparison]:
        def loss(answers: NDArray[np.float32]) -> float:
            first = rows[: len(answers)]
            return loss_of(answers, first)(np.ones(len(first)))["loss"]

        first = rows[:COMPARED]
        return compare_losses(CLASSIFIER, asked, first, results, loss, seconds, cfg["precision"])

    return Evaluation(
        figures=("precision", "recall", "f1") if has_entities else ("accuracy", "f1_macro"),
        rows=[len(rows)],
        entry_point=partial(
            classify_with, asked=[*asked], classifier=CLASSIFIER, max_rows=cfg["max_documents"]
        ),
        scores=scores,
        proof=proof,
    )
