"""The figures of a run's evaluation, benchmarks and samples."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from moray.config.tasks import SCORED
from moray.report.overview import verdict


def by_dataset(scores: dict[str, Any]) -> dict[str | None, list[dict[str, Any]]]:
    """The figures of an evaluation: of all its datasets, under None, then of each."""
    parts = {None: scores, **scores.get("datasets", {})}
    return {dataset: _figures(part) for dataset, part in parts.items()}


def of_samples(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """What metrics say of a run's samples."""
    return [
        {"metric": metric, **means, "verdict": verdict(metric, means["difference"])}
        for metric, means in metrics.items()
    ]


def of_benchmarks(record: dict[str, Any] | None) -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """The number of documents of each task, and its figures."""
    tasks = record["tasks"] if record else {}
    return {name: (task["documents"], _figures(task)) for name, task in tasks.items()}


def _figures(part: dict[str, Any]) -> list[dict[str, Any]]:
    more = part.get("higher_is_better", {})
    return [
        {
            "metric": metric,
            "base": part["base"][metric],
            "tuned": part["tuned"][metric],
            "difference": difference,
            "verdict": verdict(metric, difference, more.get(metric.partition(",")[0])),
        }
        for metric, difference in part["difference"].items()
    ]


def scored(scores: dict[str, Any]) -> str | None:
    """The number of documents, pairs or images that were scored."""
    return next((f"{scores[unit]:,} {unit}" for unit in SCORED if unit in scores), None)


@dataclass(frozen=True)
class Confusion:
    """How often images of a class were taken for each class.

    Attributes:
        counts: a row for each label, a column for each prediction.
        shares: the same, as shares of the label's images.
        left_out: number of classes that aren't shown.
    """

    names: list[str]
    counts: list[list[int]]
    shares: list[list[float]]
    left_out: int


def confusion_of(scores: dict[str, Any], classes: int) -> Confusion | None:
    """The matrix of the tuned model, None for other tasks; of many classes, the worst ones."""
    if "by_class" not in scores:
        return None
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
