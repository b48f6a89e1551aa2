"""Compare how well two models classify the same images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.evaluate.bootstrap import compare


def compare_answers(
    base: NDArray[np.float32],
    tuned: NDArray[np.float32],
    labels: NDArray[np.int64],
    samples: int,
    confidence: float,
) -> dict[str, Any]:
    """Compute the figures of two models and their difference, with bootstrap intervals.

    Args:
        base: log-probabilities of the base model, shape (images, classes).
        tuned: those of the tuned model.
        labels: shape (images,).
        samples: number of resamples of the images.
        confidence: coverage of the intervals.
    """
    return compare(_sums(base, labels), _sums(tuned, labels), _figures, samples, confidence)


def by_class(
    answers: NDArray[np.float32], labels: NDArray[np.int64], names: list[str]
) -> dict[str, Any]:
    """How a model does on each class.

    Returns:
        `confusion`: number of images, a row for each label and a column for each prediction;
        `classes`: images, recall and precision of each class, None where there is nothing to count.
    """
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion, (labels, answers.argmax(-1)), 1)
    hits, truly, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    table = {
        name: {
            "images": int(truly[number]),
            "recall": _share(hits[number], truly[number]),
            "precision": _share(hits[number], predicted[number]),
        }
        for number, name in enumerate(names)
    }
    return {"classes": table, "confusion": confusion.tolist()}


def _share(part: np.int64, whole: np.int64) -> float | None:
    return float(part / whole) if whole else None


def _sums(answers: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    nll = -answers[np.arange(len(labels)), labels]
    columns = nll, answers.argmax(-1) == labels, np.ones(len(labels))
    return np.stack(columns, axis=1).astype(np.float64)


def _figures(sums: NDArray[np.float64]) -> dict[str, float]:
    nll, correct, images = sums.tolist()
    return {"loss": nll / images, "accuracy": correct / images}
