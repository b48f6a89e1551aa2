"""Figures of labelled texts are those of scikit-learn and SciPy, and intervals have the truth."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics

from moray.evaluate.bootstrap import resampled, with_intervals
from moray.tasks.classification.scores import f1_of_labels, scorer

Array = NDArray[Any]
SINGLE, MULTI, REGRESSION = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)


def answered(labels: Array, classes: int, random: np.random.Generator) -> Array:
    """Log-probabilities that are right more often than not."""
    logits = random.normal(size=(len(labels), classes)) + 1.2 * np.eye(classes)[labels]
    # Equal scores, as few features give them.
    logits = logits.round(1)
    found: Array = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return found


def repeated(values: Array, counts: Array) -> Array:
    return np.repeat(values, counts, axis=0)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_figures_of_classes_are_those_of_scikit_learn(classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.choice(classes, 80, p=np.arange(1, classes + 1) / sum(range(classes + 1)))
    answers = answered(labels, classes, random)
    figures = scorer(answers, labels, SINGLE)
    for counts in (np.ones(80, np.int64), random.integers(0, 4, 80)):
        found = figures(counts)
        truth, all_answers = repeated(labels, counts), repeated(answers, counts)
        said = all_answers.argmax(1)
        expected = {
            "loss": metrics.log_loss(truth, np.exp(all_answers), labels=range(classes)),
            "accuracy": metrics.accuracy_score(truth, said),
            "f1_macro": metrics.f1_score(truth, said, average="macro"),
            "f1_weighted": metrics.f1_score(truth, said, average="weighted"),
            "matthews_correlation": metrics.matthews_corrcoef(truth, said),
        }
        if classes == 2:
            odds = all_answers[:, 1] - all_answers[:, 0]
            expected["auroc"] = metrics.roc_auc_score(truth, odds)
        assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_several_labels_are_those_of_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = (random.random((80, 4)) < [0.1, 0.3, 0.5, 0.7]).astype(np.float32)
    answers = random.normal(size=(80, 4)) + 2 * labels - 1
    figures = scorer(answers, labels, MULTI)
    for counts in (np.ones(80, np.int64), random.integers(0, 4, 80)):
        truth, all_answers = repeated(labels, counts), repeated(answers, counts)
        said = all_answers > 0
        each = [
            metrics.log_loss(truth[:, n], 1 / (1 + np.exp(-all_answers[:, n]))) for n in range(4)
        ]
        assert figures(counts) == pytest.approx(
            {
                "loss": np.mean(each),
                "accuracy": metrics.accuracy_score(truth, said),
                **{
                    f"f1_{kind}": metrics.f1_score(truth, said, average=kind)
                    for kind in ("macro", "micro", "weighted")
                },
            },
            rel=1e-6,
        )
        of_labels = metrics.f1_score(truth, said, average=None)
        found = f1_of_labels(answers, labels, "abcd")(counts)
        assert found == pytest.approx(dict(zip("abcd", of_labels, strict=True)))


@pytest.mark.parametrize("seed", range(3))
def test_correlations_are_those_of_scipy(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 6, 80).astype(np.float32)
    answers = (labels + random.normal(size=80)).round(1)[:, None]
    figures = scorer(answers, labels, REGRESSION)
    for counts in (np.ones(80, np.int64), random.integers(0, 4, 80)):
        truth, said = repeated(labels, counts), repeated(answers, counts)[:, 0]
        assert figures(counts) == pytest.approx(
            {
                "loss": metrics.mean_squared_error(truth, said),
                "pearson": stats.pearsonr(truth, said).statistic,
                "spearman": stats.spearmanr(truth, said).statistic,
            }
        )


def test_one_who_says_the_same_of_all_texts_knows_nothing() -> None:
    labels = np.array([0, 0, 0, 1])
    same = np.log(np.tile([0.75, 0.25], (4, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scorer(same, labels, SINGLE)(np.ones(4, np.int64))
        constant = scorer(np.ones((4, 1)), labels.astype("f4"), REGRESSION)(np.ones(4, np.int64))
    assert found["accuracy"] == 0.75
    assert (found["auroc"], found["matthews_correlation"]) == (0.5, 0.0)
    assert (constant["pearson"], constant["spearman"]) == (0.0, 0.0)


def draw_classes(random: np.random.Generator, size: int) -> tuple[Array, Array]:
    labels = random.choice(2, size, p=[0.4, 0.6])
    return answered(labels, 2, random), labels


def draw_labels(random: np.random.Generator, size: int) -> tuple[Array, Array]:
    labels = (random.random((size, 3)) < [0.3, 0.5, 0.6]).astype(np.float32)
    return random.normal(size=(size, 3)) + 2 * labels - 1, labels


def draw_numbers(random: np.random.Generator, size: int) -> tuple[Array, Array]:
    labels = random.normal(size=size).astype(np.float32)
    return (labels + random.normal(size=size))[:, None], labels


@pytest.mark.long
@pytest.mark.parametrize(
    ("draw", "problem"),
    [
        (draw_classes, SINGLE),
        pytest.param(draw_labels, MULTI, marks=pytest.mark.release),
        pytest.param(draw_numbers, REGRESSION, marks=pytest.mark.release),
    ],
)
def test_95_percent_intervals_have_the_truth_in_95_percent_of_test_sets(
    draw: Callable[[np.random.Generator, int], tuple[Array, Array]], problem: str
) -> None:
    random, sets, size = np.random.default_rng(1), 200, 400
    whole = 400_000
    truth = scorer(*draw(random, whole), problem)(np.ones(whole, np.int64))
    hits = dict.fromkeys(truth, 0)
    for _ in range(sets):
        model = resampled(scorer(*draw(random, size), problem), size, 400)
        for name, figure in with_intervals(model, model, 0.95)["base"].items():
            hits[name] += figure["low"] <= truth[name] <= figure["high"]
    shares = {name: count / sets for name, count in hits.items()}
    assert all(0.92 <= share <= 0.98 for share in shares.values()), shares
