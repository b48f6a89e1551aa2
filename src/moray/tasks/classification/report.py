"""The part of the report about a run on texts with labels: each label, and samples."""

from typing import Any

from moray.report.details import Limits
from moray.results import Run


def part(run: Run, samples: list[dict[str, Any]], limits: Limits) -> dict[str, Any]:
    """The values of `report.html`, besides the samples."""
    scores = run.figures("eval.json") or {}
    by_label = scores.get("by_label")
    # What of each label is counted: texts that have it, words, or entities of this type.
    unit = next((name for name in by_label or () if name != "f1"), "")
    return {
        "base_is": scores.get("base_is"),
        "unit": unit,
        "has_words": any("tokens" in sample for sample in samples),
        "labels": [
            {"name": name, "count": count}
            | {of: by_label["f1"][of][name] for of in ("base", "tuned", "difference")}
            for name, count in [*by_label[unit].items()][: limits.classes]
        ]
        if by_label
        else [],
    }
