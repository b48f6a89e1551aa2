"""Compare what base and tuned say about held-out texts with labels.

A base whose output layer is random says nothing, so it stands for what can be said without reading:
how frequent each label is among the texts to train on, or the mean of their numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from moray.evaluate.bootstrap import BootstrapFigures, resampled, units_to_resample, with_intervals
from moray.evaluate.classification import (
    COMPARED,
    Answers,
    Classifier,
    by_class,
    classify_on_worker,
    collect_answers,
    compare_losses,
    rows_to_classify,
)
from moray.evaluate.worker import Evaluation, EvaluationJob
from moray.proofs.comparison import Comparison
from moray.provenance.manifest import read_manifest
from moray.rows.store import Rows, StoredRows, groups_of
from moray.tasks.classification.base_model import NEW_HEAD
from moray.tasks.classification.classifier import load
from moray.tasks.classification.proofs import TOKENS, mean_loss
from moray.tasks.classification.scores import Scorer, f1_of_labels, losses, scorer
from moray.tasks.classification.survey import MULTI, REGRESSION, SINGLE
from moray.tasks.classification.task import make_batch
from moray.workers.entry import Worker


def logits(model: PreTrainedModel, rows: Rows, manifest: dict[str, Any]) -> Tensor:
    """Logits of the classes of texts, shape (texts, classes)."""
    return make_batch(rows).to(model.device).logits(model)


def _as_they_are(logits: Tensor) -> Tensor:
    return logits


def classifier_of(problem: str) -> Classifier:
    """How models of a problem classify texts, with answers as in `scores.losses`."""
    classifier = Classifier("texts", load, logits, mean_loss, TOKENS)
    return classifier if problem == SINGLE else replace(classifier, answers=_as_they_are)


def prior_answers(manifest: Mapping[str, Any], texts: int) -> NDArray[np.float32]:
    """What a model that reads nothing answers: the same for each text, shape (texts, classes)."""
    prior = np.atleast_1d(np.array(manifest["prior"], np.float64))
    if manifest["problem_type"] != REGRESSION:
        shares = prior / manifest["splits"]["train"]["rows"]
        prior = np.log(shares)
        if manifest["problem_type"] == MULTI:
            # A label that all texts have has finite log-odds too.
            prior -= np.log(np.maximum(1 - shares, 1e-6))
    return np.tile(prior.astype(np.float32), (texts, 1))


def says_nothing(model: Path) -> bool:
    """Whether the output layer of a base model is random."""
    return bool(read_manifest(model).get(NEW_HEAD))


def evaluation(
    models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
) -> Evaluation:
    """Compare models on the texts of one dataset; intervals are over groups of texts, or texts."""
    (store,) = stores
    split, manifest = StoredRows(store, "test"), read_manifest(store)
    problem, names = manifest["problem_type"], manifest["label_names"]
    numbers, classifier = rows_to_classify(split, cfg["max_documents"]), classifier_of(problem)
    labels = split.rows["label"][numbers]
    asked = {of: model for of, model in models.items() if of == "tuned" or not says_nothing(model)}
    name, units = units_to_resample(
        {"groups": groups_of(store, "test", numbers), "texts": np.arange(len(numbers))}
    )
    # Numbers without gaps.
    units = np.unique(units, return_inverse=True)[1]
    samples, confidence = cfg["bootstrap_samples"], cfg["confidence"]

    def resample(measure: Scorer) -> BootstrapFigures:
        return resampled(lambda counts: measure(counts[units]), int(units.max()) + 1, samples)

    def scores(results: list[dict[str, Answers]]) -> dict[str, Any]:
        answers = {of: collect_answers([result[of] for result in results]) for of in asked}
        answers = {"base": prior_answers(manifest, len(labels)), **answers}
        before, after = (resample(scorer(answers[of], labels, problem)) for of in ("base", "tuned"))
        result = {
            "texts": len(labels),
            "label_names": names,
            "problem_type": problem,
            "confidence": confidence,
            "resampled": name,
            **with_intervals(before, after, confidence),
        }
        if "base" not in asked:
            result["base_is"] = "the mean" if problem == REGRESSION else "the most frequent label"
        if problem == SINGLE:
            numbered = labels.astype(np.int64)
            tables = {of: by_class(answers[of], numbered, names, "texts") for of in models}
            return {**result, "by_class": tables}
        if problem == REGRESSION:
            return {**result, "headline": "pearson"}
        return {**result, "headline": "f1_macro", "by_label": by_label(answers)}

    def by_label(answers: Mapping[str, NDArray[np.float32]]) -> dict[str, Any]:
        """The F1 of each label with its interval, and the number of texts that have it."""
        before, after = (
            resample(f1_of_labels(answers[of], labels, names)) for of in ("base", "tuned")
        )
        counts = (labels > 0).sum(0).tolist()
        return {
            "texts": dict(zip(names, counts, strict=True)),
            "f1": with_intervals(before, after, confidence),
        }

    def proof(results: list[dict[str, Answers]], seconds: float) -> Iterator[Comparison]:
        def loss(answers: NDArray[np.float32]) -> float:
            return float(losses(answers, labels[: len(answers)], problem).mean())

        rows = split.rows[numbers[:COMPARED]]
        return compare_losses(classifier, asked, rows, results, loss, seconds, cfg["precision"])

    figures = {SINGLE: ("accuracy", "f1_macro"), MULTI: ("f1_micro", "f1_macro")}
    return Evaluation(
        figures=figures.get(problem, ("pearson", "spearman")),
        rows=[len(labels)],
        entry_point=partial(
            classify_with, asked=[*asked], classifier=classifier, max_rows=cfg["max_documents"]
        ),
        scores=scores,
        proof=proof,
    )


def classify_with(
    job: EvaluationJob,
    worker: Worker,
    asked: list[str],
    classifier: Classifier,
    max_rows: int | None,
) -> dict[str, Answers]:
    """Classify with those of a job's models that say something; see `classify_on_worker`."""
    own = replace(job, models={name: job.models[name] for name in asked})
    return classify_on_worker(own, worker, classifier, max_rows)
