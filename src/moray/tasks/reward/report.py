"""The part of the report about a reward model: what its base stands for, and samples."""

from typing import Any

from moray.report.details import Limits
from moray.results import Run


def part(run: Run, samples: list[dict[str, Any]], limits: Limits) -> dict[str, Any]:
    """The values of `report.html`, besides the samples."""
    scores = run.figures("eval.json") or {}
    return {name: scores.get(name) for name in ("base_is", "longer_is_chosen")}
