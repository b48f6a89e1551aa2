"""Everything about one run, for its part of the page."""

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from moray.config.tasks import SCORED, TASKS
from moray.provenance.lineage import LINEAGE
from moray.report.confusion import Confusion, confusion_of
from moray.report.limits import Limits
from moray.report.lineage import Node, lineage_of
from moray.report.overview import Row, verdict
from moray.report.quantities import known
from moray.report.remarks import remarks
from moray.report.settings import changed
from moray.results import Results
from moray.results.run import Run

# A preview may have been cut within one.
_TRAINED = re.compile("⟦([^⟦⟧]*)⟧")


@dataclass(frozen=True)
class Details:
    """What the page says about a run besides its row in the overview.

    Attributes:
        row: that row.
        remarks: warnings and notes, each with its kind.
        curves: whether there are any of its training.
        scores: the figures of the evaluation: of all its datasets, then of each.
        benchmarks: those of each task, and its number of documents.
        scored: number of documents, pairs or images; None if it wasn't evaluated.
        confidence: coverage of the intervals.
        confusion: of the tuned model, for images.
        samples: the first ones.
        sampling: the settings that they were made with.
        metrics: what metrics say of them.
        previews: beginnings of its tokens, by store; trained tokens are marked.
        figure: its predictions, as a data URI; None if there is none or it is too large.
        settings: those that aren't the defaults: key, value, default.
        stages: what each stage took.
        machine: what it was trained on.
        software: versions.
        lineage: what its model was made from.
    """

    row: Row
    remarks: list[tuple[str, str]]
    curves: bool
    scores: dict[str | None, list[dict[str, Any]]]
    benchmarks: dict[str, tuple[int, list[dict[str, Any]]]]
    scored: str | None
    confidence: float | None
    confusion: Confusion | None
    samples: list[dict[str, Any]]
    sampling: dict[str, Any]
    metrics: list[dict[str, Any]]
    previews: dict[str, Markup]
    figure: str | None
    settings: list[tuple[str, Any, Any]]
    stages: list[dict[str, Any]]
    machine: dict[str, Any]
    software: dict[str, Any]
    lineage: Node | None


def details(
    results: Results,
    row: Row,
    notes: list[str],
    curves: bool,
    samples: list[dict[str, Any]],
    limits: Limits,
) -> Details:
    """Everything about a run.

    Args:
        results: all results.
        row: the run's row in the overview.
        notes: those of its history.
        curves: whether it has any.
        samples: its rows of `results.samples`.
        limits: how much to show.
    """
    run = results.files[row.facts["run"]]
    record, scores = run.record or {}, run.read("eval.json")
    generation = run.read("generation.json") or {}
    return Details(
        row=row,
        remarks=remarks(run, notes),
        curves=curves,
        scores=_scores(scores) if scores else {},
        benchmarks=_benchmarks(run.read("benchmarks.json")),
        scored=_scored(scores) if scores else None,
        confidence=scores["confidence"] if scores else None,
        confusion=confusion_of(scores, limits.classes) if scores else None,
        samples=_samples(samples, limits),
        sampling={key: value for key, value in generation.items() if key != "metrics"},
        metrics=_means(generation.get("metrics", {})),
        previews=_previews(run, limits.characters),
        figure=_figure(run.folder / "predictions.svg", limits.figure_bytes),
        settings=changed(run.settings),
        stages=_stages(run, results.stages),
        machine=record.get("machine", {}),
        software=record.get("software", {}),
        lineage=lineage_of(run, limits.files),
    )


def _scores(scores: dict[str, Any]) -> dict[str | None, list[dict[str, Any]]]:
    parts = {None: scores, **scores.get("datasets", {})}
    return {dataset: _figures(part) for dataset, part in parts.items()}


def _means(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"metric": metric, **means, "verdict": verdict(metric, means["difference"])}
        for metric, means in metrics.items()
    ]


def _benchmarks(record: dict[str, Any] | None) -> dict[str, tuple[int, list[dict[str, Any]]]]:
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


def _scored(scores: dict[str, Any]) -> str | None:
    return next((f"{scores[unit]:,} {unit}" for unit in SCORED if unit in scores), None)


def _samples(samples: list[dict[str, Any]], limits: Limits) -> list[dict[str, Any]]:
    return [
        {name: cut(value, limits.characters) for name, value in row.items() if known(value)}
        for row in samples[: limits.samples]
    ]


def cut(value: Any, characters: int) -> Any:
    """A text without what is too long to show."""
    if not isinstance(value, str) or len(value) <= characters:
        return value
    return f"{value[:characters]} … {len(value) - characters:,} more characters"


def _previews(run: Run, characters: int) -> dict[str, Markup]:
    """What `snakemake preview` prints of the run's rows."""
    texts = (Path(store, "preview.txt") for store in _stores(run))
    return {
        file.parent.name: _marked(cut(file.read_text(), characters))
        for file in texts
        if file.is_file()
    }


def _marked(preview: str) -> Markup:
    return Markup(_TRAINED.sub(r"<mark>\1</mark>", str(escape(preview))))


def _stores(run: Run) -> list[Path]:
    """The stores that a run's datasets were prepared into."""
    inputs = (run.read(f"model/{LINEAGE}") or {}).get("inputs", {})
    results = run.folder.parent.parent
    prepared = {Path(task.prepared) for task in TASKS.values()}
    stores = (Path(path).parent for path in inputs)
    return [results / store.relative_to("results") for store in stores if store.parent in prepared]


def _figure(file: Path, most: int) -> str | None:
    """A figure of Matplotlib as a data URI; the smaller of its two forms, if it is small enough."""
    forms = {"svg+xml": file, "png": file.with_suffix(".png")}
    sizes = {kind: form.stat().st_size for kind, form in forms.items() if form.is_file()}
    for kind, size in sizes.items():
        if size <= most:
            content = base64.b64encode(forms[kind].read_bytes()).decode()
            return f"data:image/{kind};base64,{content}"
    return None


def _stages(run: Run, stages: pd.DataFrame) -> list[dict[str, Any]]:
    """The stages of a run, and of what it was made from."""
    inputs = (run.read(f"model/{LINEAGE}") or {}).get("inputs", {})
    names = {Path(path).parent.name for path in inputs} | {run.name}
    rows: list[dict[str, Any]] = stages[stages["name"].isin(names)].to_dict("records")
    return rows
