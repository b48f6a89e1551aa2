"""The part of the report about a run on text: metrics of its samples, and what is trained."""

import re
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from moray.config.tasks import MODALITIES
from moray.report.details import Limits, cut, inputs_of
from moray.report.overview import verdict
from moray.results import Run

# A preview may have been cut within one.
_TRAINED = re.compile("⟦([^⟦⟧]*)⟧")


def part(run: Run, samples: list[dict[str, Any]], limits: Limits) -> dict[str, Any]:
    """The values of `report.html`, besides the samples."""
    generation = run.figures("generation.json") or {}
    return {
        "metrics": _metrics(generation.get("metrics", {})),
        "previews": _previews(run, limits.characters),
    }


def _metrics(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of a run's samples."""
    return [
        {"metric": metric, **means, "verdict": verdict(metric, means["difference"])}
        for metric, means in metrics.items()
    ]


def _previews(run: Run, characters: int) -> dict[str, Markup]:
    """The beginnings of the run's rows, by store; trained tokens are marked."""
    folder = Path(MODALITIES["text"].prepared)
    previews = {}
    for store in (Path(path).parent for path in inputs_of(run)):
        file = run.folder.parents[1] / store.relative_to("results") / "preview.txt"
        if store.parent == folder and file.is_file():
            text = str(escape(cut(file.read_text(errors="replace"), characters)))
            previews[store.name] = Markup(_TRAINED.sub(r"<mark>\1</mark>", text))
    return previews
