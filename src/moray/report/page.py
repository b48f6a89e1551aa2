"""The page: one HTML file that holds all it needs and asks the network for nothing."""

import base64
import gzip
import hashlib
import json
from collections import defaultdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from moray.provenance.manifest import write_bytes
from moray.report import quantities
from moray.report.curves import curves
from moray.report.details import details
from moray.report.limits import Limits
from moray.report.overview import overview
from moray.report.seeds import over_seeds
from moray.report.settings import differing
from moray.results import Results

_TEMPLATES = "templates"


def write_page(results: Results, output: Path) -> None:
    """Write the page about some runs.

    Args:
        results: the runs.
        output: file to write.
    """
    write_bytes(output, render(results).encode())


def render(results: Results) -> str:
    """The page as HTML.

    The overview is in the page as it is; details of runs and the plotting library are compressed,
    and unpacked by the browser when needed.
    """
    environment = _environment()
    limits, rows = Limits.of(len(results.runs)), overview(results)
    drawn = curves(results.history, limits.points)
    notes, samples = _by_run(results.history.query("kind == 'note'")), _by_run(results.samples)
    details_of = environment.get_template("run.html")
    runs = {}
    for row in rows:
        name = row.facts["run"]
        said = [line["note"] for line in notes[name]]
        found = details(results, row, said, name in drawn, samples[name], limits)
        runs[name] = {
            "html": details_of.render(found=found, row=row),
            "curves": drawn.get(name, {}),
            "scores": found.scores.get(None, []),
        }
    script = _read("script.js")
    return environment.get_template("page.html").render(
        policy=_policy(script, get_plotlyjs()),
        style=_read("style.css"),
        script=script,
        library=_packed_library(),
        runs=packed(json.dumps(runs)),
        rows=rows,
        seeds=over_seeds(results, rows),
        settings=differing(results.settings),
        charted=[name for name, run in runs.items() if run["curves"]],
    )


def packed(text: str) -> str:
    """A text for an HTML element, compressed: the same text always gives the same bytes."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@cache
def _packed_library() -> str:
    return packed(get_plotlyjs())


def _by_run(frame: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The rows of a data frame, by run."""
    rows = defaultdict(list)
    for row in frame.to_dict("records"):
        rows[row["run"]].append(row)
    return rows


def _policy(*scripts: str) -> str:
    """A content security policy: these scripts alone, and no network.

    The plotting library sets styles of its own.
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("moray.report", _TEMPLATES),
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
