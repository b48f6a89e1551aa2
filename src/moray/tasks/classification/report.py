"""The part of the report about a run on texts with labels: each label, and samples."""

from typing import Any

from moray.report.details import Limits
from moray.results import Run


def part(run: Run, samples: list[dict[str, Any]], limits: Limits) -> dict[str, Any]:
    """The values of `report.html`, besides the samples."""
    scores = run.figures("eval.json") or {}
    by_label = scores.get("by_label")
    return {
        "base_is": scores.get("base_is"),
        "labels": [
            {"name": name, "texts": texts}
            | {of: by_label["f1"][of][name] for of in ("base", "tuned", "difference")}
            for name, texts in [*by_label["texts"].items()][: limits.classes]
        ]
        if by_label
        else [],
    }
