"""The part of the report about a run on images: a figure of predictions."""

import base64
from pathlib import Path
from typing import Any

from moray.report.details import Limits
from moray.results import Run


def part(run: Run, samples: list[dict[str, Any]], limits: Limits) -> dict[str, Any]:
    """The values of `report.html`, besides the samples."""
    figure = run.folder / "predictions.svg"
    return {"figure": _figure(figure, limits.figure_bytes) if samples else None}


def _figure(file: Path, most: int) -> str | None:
    """A figure of Matplotlib as a data URI: the first of its two forms that is small enough."""
    for kind, form in (("svg+xml", file), ("png", file.with_suffix(".png"))):
        if form.is_file() and form.stat().st_size <= most:
            content = base64.b64encode(form.read_bytes()).decode()
            return f"data:image/{kind};base64,{content}"
    return None
