"""The confusion matrix of a run that classifies."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Confusion:
    """How often rows of a class were taken for each class.

    Attributes:
        counts: a row for each label, a column for each prediction.
        shares: the same, as shares of the label's rows.
        left_out: number of classes that aren't shown.
    """

    names: list[str]
    counts: list[list[int]]
    shares: list[list[float]]
    left_out: int


def confusion_of(scores: dict[str, Any], classes: int) -> Confusion:
    """The matrix of the tuned model; of many classes, the worst ones."""
    counts = np.array(scores["by_class"]["tuned"]["confusion"])
    mistakes = counts.sum(axis=1) - np.diag(counts)
    shown = np.sort(np.argsort(-mistakes, kind="stable")[:classes])
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    return Confusion(
        names=[scores["label_names"][number] for number in shown],
        counts=counts[np.ix_(shown, shown)].tolist(),
        shares=shares[np.ix_(shown, shown)].round(3).tolist(),
        left_out=len(counts) - len(shown),
    )
