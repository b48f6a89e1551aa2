"""Figures of labelled texts, by the problem, from what a model says and how often each text counts.

A resample of a test set counts some of its texts twice and others not at all, so all figures are
of counts. Each equals that of scikit-learn or SciPy on texts that are repeated so often.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.evaluate.ranks import auroc
from moray.tasks.classification.survey import MULTI, REGRESSION, SINGLE

Array = NDArray[Any]
Scorer = Callable[[Array], dict[str, float]]
"""Computes figures from how often each text counts, shape (texts,)."""


def losses(answers: Array, labels: Array, problem: str) -> Array:
    """The loss of each text, shape (texts,).

    Args:
        answers: log-probabilities of the classes; log-odds of each if a text can have several; or
            numbers; shape (texts, classes).
        labels: as rows have them.
    """
    if problem == SINGLE:
        return -answers[np.arange(len(labels)), labels.astype(np.int64)].astype(np.float64)
    values = answers.astype(np.float64)
    if problem == MULTI:
        # log(1 + exp(x)), without overflow.
        found: Array = (np.logaddexp(0, values) - labels * values).mean(1)
        return found
    return (values[:, 0] - labels.astype(np.float64)) ** 2


def scorer(answers: Array, labels: Array, problem: str) -> Scorer:
    """What computes the figures of a model; see `losses` for its arguments."""
    own = losses(answers, labels, problem)
    makers: dict[str, Callable[[Array, Array], Scorer]]
    makers = {SINGLE: _single, MULTI: _multi, REGRESSION: _regression}
    others = makers[problem](answers, labels)
    return lambda counts: {"loss": float(own @ counts / counts.sum()), **others(counts)}


def _single(answers: Array, labels: Array) -> Scorer:
    truth, said = labels.astype(np.int64), answers.argmax(-1)
    classes = answers.shape[1]
    rank = auroc(answers[:, 1].astype(np.float64) - answers[:, 0], truth) if classes == 2 else None

    def figures(counts: Array) -> dict[str, float]:
        hits, truly, predicted = (
            np.bincount(numbers, counts * counted, classes)
            for numbers, counted in ((truth, truth == said), (truth, 1), (said, 1))
        )
        found = {
            "accuracy": float(hits.sum() / counts.sum()),
            **mean_f1(hits, truly, predicted),
            "matthews_correlation": _matthews(hits, truly, predicted),
        }
        return found | ({"auroc": rank(counts)} if rank else {})

    return figures


def _multi(answers: Array, labels: Array) -> Scorer:
    truth, said = labels > 0, answers > 0
    right = (truth == said).all(1)

    def figures(counts: Array) -> dict[str, float]:
        hits, truly, predicted = (counts @ one for one in (truth & said, truth, said))
        micro = ratio(2 * hits.sum(), truly.sum() + predicted.sum())
        return {
            "accuracy": float(right @ counts / counts.sum()),
            "f1_micro": float(micro),
            **mean_f1(hits, truly, predicted),
        }

    return figures


def f1_of_labels(answers: Array, labels: Array, names: Sequence[str]) -> Scorer:
    """What computes the F1 of each class that a text can have, by its name."""
    truth, said = labels > 0, answers > 0

    def figures(counts: Array) -> dict[str, float]:
        each = ratio(2 * (counts @ (truth & said)), counts @ truth + counts @ said)
        return dict(zip(names, each.tolist(), strict=True))

    return figures


def _regression(answers: Array, labels: Array) -> Scorer:
    said, truth = answers[:, 0].astype(np.float64), labels.astype(np.float64)
    ranks = [np.unique(values, return_inverse=True)[1] for values in (said, truth)]

    def figures(counts: Array) -> dict[str, float]:
        first, second = (_mean_ranks(places, counts) for places in ranks)
        return {
            "pearson": _pearson(said, truth, counts),
            "spearman": _pearson(first, second, counts),
        }

    return figures


def mean_f1(hits: Array, truly: Array, predicted: Array) -> dict[str, float]:
    """The mean F1 of the classes that occur, and that weighted by their texts."""
    each = ratio(2 * hits, truly + predicted)
    occurs = truly + predicted > 0
    weighted = ratio(each @ truly, truly.sum())
    return {
        "f1_macro": float(each[occurs].mean()) if occurs.any() else 0.0,
        "f1_weighted": float(weighted),
    }


def _matthews(hits: Array, truly: Array, predicted: Array) -> float:
    """Matthews' correlation of several classes; 0 if all texts have one, or are said to.

    Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation
    coefficient", 2004.
    """
    count = truly.sum()
    over = hits.sum() * count - truly @ predicted
    below = (count**2 - predicted @ predicted) * (count**2 - truly @ truly)
    return float(ratio(over, np.sqrt(below)))


def _mean_ranks(places: Array, counts: Array) -> Array:
    """The rank of each text among all that count; equal ones share the mean of theirs."""
    each = np.bincount(places, counts)
    ranks: Array = (np.cumsum(each) - (each - 1) / 2)[places]
    return ranks


def _pearson(first: Array, second: Array, counts: Array) -> float:
    """Pearson's correlation; 0 if one of them is constant, since nothing goes with it."""
    a, b = (values - values @ counts / counts.sum() for values in (first, second))
    below = np.sqrt((a * a) @ counts * ((b * b) @ counts))
    return float(ratio((a * b) @ counts, below if below > 1e-12 else 0.0))


def ratio(over: Any, below: Any) -> Any:
    """A ratio, 0 where there is nothing to divide by."""
    over, below = np.asarray(over, np.float64), np.asarray(below, np.float64)
    return np.divide(over, below, out=np.zeros_like(over), where=below > 0)
