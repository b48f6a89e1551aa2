"""The page: one HTML file that holds all it needs and asks the network for nothing."""

import base64
import gzip
import hashlib
import json
import math
from collections import defaultdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray
from plotly.offline import get_plotlyjs

from moray.provenance.manifest import write_bytes
from moray.report import quantities
from moray.report.details import Limits, details_of_run
from moray.report.overview import differing_settings, over_seeds, overview
from moray.results import Results

_TEMPLATES = "templates"


def write_page(results: Results, output: Path) -> None:
    """Write the page about some runs."""
    write_bytes(output, render(results).encode())


def render(results: Results) -> str:
    """The page as HTML.

    The overview is in the page as it is; details of runs and the plotting library are compressed,
    and unpacked by the browser when needed.
    """
    environment = _environment()
    limits, rows = Limits.of(len(results.runs)), overview(results)
    curves_by_run = curves(results.history, limits.points)
    notes, samples = _by_run(results.history.query("kind == 'note'")), _by_run(results.samples)
    template = environment.get_template("run.html")
    runs = {}
    for row in rows:
        name = row.facts["run"]
        notes_of_run = [line["note"] for line in notes[name]]
        values = details_of_run(results, results.files[name], notes_of_run, samples[name], limits)
        runs[name] = {
            "html": template.render(details=values, row=row, curves=name in curves_by_run),
            "curves": curves_by_run.get(name, {}),
            "scores": scores_to_plot(values["scores"].get(None, [])),
        }
    script = _read("script.js")
    return environment.get_template("page.html").render(
        policy=_policy(script, get_plotlyjs()),
        style=_read("style.css"),
        script=script,
        library=_packed_library(),
        runs=compress(json.dumps(runs, allow_nan=False)),
        rows=rows,
        seeds=over_seeds(results, rows),
        settings=differing_settings(results.settings),
        charted=[name for name, run in runs.items() if run["curves"]],
    )


def compress(text: str) -> str:
    """A text for an HTML element, compressed: the same text always gives the same bytes."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@cache
def _packed_library() -> str:
    return compress(get_plotlyjs())


def _by_run(frame: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    rows = defaultdict(list)
    for row in frame.to_dict("records"):
        rows[row["run"]].append(row)
    return rows


def _policy(*scripts: str) -> str:
    """A content security policy: these scripts alone, and no network.

    The plotting library sets styles of its own.
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    sources = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _environment() -> Environment:
    environment = Environment(
        # The templates of tasks are in the tasks' folders.
        loader=ChoiceLoader(
            [PackageLoader("moray.report", _TEMPLATES), PackageLoader("moray.tasks", ".")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ("count", "duration", "figure", "interval", "memory", "name", "probability", "setting")
    environment.filters |= {name: getattr(quantities, name) for name in names}
    return environment


def _read(name: str) -> str:
    return resources.files("moray.report").joinpath(_TEMPLATES, name).read_text()


_METRICS = ["loss", "eval_loss", "learning_rate", "grad_norm"]
_SPEED = "_per_second"

Curve = tuple[list[int], list[float | None]]
"""Steps, and values where they are finite."""


def curves(history: pd.DataFrame, points: int) -> dict[str, dict[str, Curve]]:
    """The curves of each run, those of the metrics that it has, and its `speed` per second."""
    names = [name for name in history if name in _METRICS or name.endswith(_SPEED)]
    columns = {name: history[name].to_numpy(float) for name in names}
    steps = history["step"].to_numpy()
    by_run: dict[str, dict[str, Curve]] = {}
    for run, lines in history.groupby("run", sort=False).indices.items():
        by_run[run] = {}
        for name, column in columns.items():
            indices = lines[~np.isnan(column[lines])]
            if len(indices):
                selection = indices[spread(column[indices], points)]
                metric = "speed" if name.endswith(_SPEED) else name
                values = [_short(value) for value in column[selection].tolist()]
                by_run[run][metric] = (steps[selection].tolist(), values)
    return by_run


def spread(values: NDArray[np.float64], points: int) -> NDArray[np.int64]:
    """The places of the lowest and the highest value of each of equal parts, ascending.

    So spikes stay visible, as in the M4 aggregation (Jugel et al., 2014). All places if there are
    no more than `points`.

    Args:
        values: shape (values,).
        points: maximum number of places, at least 4.
    """
    if len(values) <= points:
        return np.arange(len(values))
    ends = {0, len(values) - 1}
    parts = np.array_split(np.arange(len(values)), (points - len(ends)) // 2)
    lowest = {int(part[values[part].argmin()]) for part in parts}
    highest = {int(part[values[part].argmax()]) for part in parts}
    return np.array(sorted(ends | lowest | highest))


def scores_to_plot(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The scores of a run that the page plots."""
    return [
        {"metric": line["metric"]}
        | {
            model: {name: _if_finite(value) for name, value in line[model].items()}
            for model in ("base", "tuned")
        }
        for line in figures
    ]


def _short(value: float) -> float | None:
    """A value with five significant digits."""
    return _if_finite(float(f"{value:.5g}"))


def _if_finite(value: float) -> float | None:
    """None, as browsers read no NaN, where there is nothing to draw."""
    return value if math.isfinite(value) else None
