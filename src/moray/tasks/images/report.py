"""The part of the report about a run on images: confused classes, and a figure of predictions."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moray.report.details import Limits
from moray.results import Run


def part(run: Run, samples: list[dict[str, Any]], limits: Limits) -> dict[str, Any]:
    """The values of `report.html`, besides the samples."""
    scores, figure = run.figures("eval.json") or {}, run.folder / "predictions.svg"
    return {
        "confusion": confusion_of(scores, limits.classes) if "by_class" in scores else None,
        "figure": _figure(figure, limits.figure_bytes) if samples else None,
    }


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


def confusion_of(scores: dict[str, Any], classes: int) -> Confusion:
    """The matrix of the tuned model; of many classes, the worst ones."""
    counts = np.array(scores["by_class"]["tuned"]["confusion"])
    mistakes = counts.sum(axis=1) - np.diag(counts)
    numbers = np.sort(np.argsort(-mistakes, kind="stable")[:classes])
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    return Confusion(
        names=[scores["label_names"][number] for number in numbers],
        counts=counts[np.ix_(numbers, numbers)].tolist(),
        shares=shares[np.ix_(numbers, numbers)].round(3).tolist(),
        left_out=len(counts) - len(numbers),
    )


def _figure(file: Path, most: int) -> str | None:
    """A figure of Matplotlib as a data URI: the first of its two forms that is small enough."""
    for kind, form in (("svg+xml", file), ("png", file.with_suffix(".png"))):
        if form.is_file() and form.stat().st_size <= most:
            content = base64.b64encode(form.read_bytes()).decode()
            return f"data:image/{kind};base64,{content}"
    return None
