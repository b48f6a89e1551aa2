"""The page: one HTML file that holds all it needs and asks the network for nothing."""

import base64
import gzip
import hashlib
import json
import math
import re
from collections import defaultdict
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from moray.config.schema.report import Report
from moray.provenance.manifest import write_bytes
from moray.report import quantities
from moray.report.answer import answers
from moray.report.columns import (
    FACTS,
    OWN_COLUMNS,
    columns_of,
    differing_settings,
    in_one_sentence,
    label,
    short_names,
)
from moray.report.curves import curves, if_finite, times
from moray.report.details import Limits, details_of_run
from moray.report.overview import over_seeds, overview, seeds_of_settings
from moray.report.samples import samples_beside
from moray.results import Results

_TEMPLATES = "templates"
# Python's own names are those of the machine's language.
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)


def write_page(results: Results, output: Path, about: Report | None = None) -> None:
    """Write the page about some runs, with what is said of them as a whole."""
    write_bytes(output, render(results, about).encode())


def render(results: Results, about: Report | None = None) -> str:
    """The page as HTML.

    The overview is in the page as it is; details of runs and the plotting library are compressed,
    and unpacked by the browser when needed.
    """
    about = about or Report()
    environment = _environment()
    limits, rows = Limits.of(len(results.runs)), overview(results)
    curves_by_run = curves(results.history, limits.points)
    times_by_run = times(results.history, limits.points)
    settings_by_run = seeds_of_settings(results)
    notes, samples = _by_run(results.history.query("kind == 'note'")), _by_run(results.samples)
    template = environment.get_template("run.html")
    runs = {}
    for row in rows:
        name = row.facts["run"]
        notes_of_run = [line["note"] for line in notes[name]]
        values = details_of_run(results, results.files[name], notes_of_run, samples[name], limits)
        runs[name] = {
            "html": template.render(details=values, row=row, curves=name in curves_by_run),
            "label": label(name),
            "setting": settings_by_run.get(name),
            "curves": curves_by_run.get(name, {}),
            "times": times_by_run.get(name),
            "scores": scores_to_plot(values["scores"].get(None, [])),
        }
    script, seeds = _read("script.js"), over_seeds(results, rows)
    found = answers(results, rows, seeds)
    differing = differing_settings(results.settings)
    columns = columns_of(differing)
    return environment.get_template("page.html").render(
        policy=_policy(script, get_plotlyjs()),
        style=_read("style.css"),
        script=script,
        library=_packed_library(),
        runs=compress(json.dumps(runs, allow_nan=False)),
        rows=rows,
        title=about.title,
        author=about.author,
        paragraphs=_paragraphs(about.text or ""),
        date=last_trained(results.history),
        answers=found,
        samples=samples_beside(found, samples, limits),
        seeds=seeds,
        columns=columns,
        settings_of={row["run"]: row for row in results.settings.to_dict("records")},
        # Unless the comparison has them all.
        differing=differing if {*differing} - {*columns} - OWN_COLUMNS else None,
        short=short_names([*runs, *(setting.name for setting in seeds)], columns),
        facts=FACTS,
        of_all=in_one_sentence(results.runs),
        charted=[name for name, run in runs.items() if run["curves"]],
    )


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text.strip()) if part]


def last_trained(history: pd.DataFrame) -> str | None:
    """The day (UTC) of the last line of all histories, such as `1 December 2026`.

    So the same results give the same page. None if no line has a time.
    """
    last = history["time"].max() if "time" in history else None
    if last is None or not math.isfinite(last):
        return None
    day = datetime.fromtimestamp(last, UTC)
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


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
    environment.filters["label"] = label
    names = ("count", "duration", "figure", "interval", "memory", "name", "probability", "setting")
    environment.filters |= {name: getattr(quantities, name) for name in names}
    return environment


def _read(name: str) -> str:
    return resources.files("moray.report").joinpath(_TEMPLATES, name).read_text()


def scores_to_plot(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The scores of a run that the page plots."""
    return [
        {"metric": line["metric"]}
        | {
            model: {name: if_finite(value) for name, value in line[model].items()}
            for model in ("base", "tuned")
        }
        for line in figures
    ]
