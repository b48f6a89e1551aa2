"""A row of figures for each run, and which runs are best."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moray.config.tasks import SCORED, TASKS
from moray.report.quantities import known
from moray.results import Results
from moray.results.run import Run


@dataclass
class Row:
    """A run in the overview.

    Attributes:
        facts: its row of `Results.runs`.
        metric: the figure that it is judged by; None if it wasn't evaluated.
        base: that figure of its base, with the bounds of its interval.
        tuned: that of the run.
        verdict: `better` or `worse` than the base, if the interval of the difference says so.
        best: whether its interval is better than that of every run with the same held-out data.
    """

    facts: dict[str, Any]
    metric: str | None = None
    base: dict[str, float] | None = None
    tuned: dict[str, float] | None = None
    verdict: str | None = None
    best: bool = False


def overview(results: Results) -> list[Row]:
    """A row for each run, in their order."""
    rows, comparable = [], defaultdict(list)
    for facts in results.runs.to_dict("records"):
        facts = {name: value if known(value) else None for name, value in facts.items()}
        run = results.files[facts["run"]]
        row = _row(facts, run.read("eval.json"))
        rows.append(row)
        if row.tuned is not None:
            comparable[held_out(run, facts)].append(row)
    for group in comparable.values():
        _mark_best(group)
    return rows


def verdict(metric: str, difference: dict[str, float], more: bool | None = None) -> str | None:
    """Whether a difference from the base is one, if its interval says so.

    Args:
        metric: name of the figure.
        difference: tuned minus base.
        more: whether more of it is better; None to tell by its name.
    """
    better = more_is_better(metric) if more is None else more
    if difference["low"] > 0:
        return "better" if better else "worse"
    if difference["high"] < 0:
        return "worse" if better else "better"
    return None


def more_is_better(metric: str) -> bool:
    """Whether more of a figure is better."""
    return not metric.endswith(("loss", "perplexity", "bits_per_byte"))


def _row(facts: dict[str, Any], scores: dict[str, Any] | None) -> Row:
    if scores is None or facts["task"] not in TASKS:
        return Row(facts)
    metric = TASKS[facts["task"]].headline
    judged = verdict(metric, scores["difference"][metric])
    return Row(facts, metric, scores["base"][metric], scores["tuned"][metric], judged)


def held_out(run: Run, facts: dict[str, Any]) -> tuple[Any, ...]:
    """What runs have in common that were scored on the same documents, pairs or images."""
    scores = run.read("eval.json") or {}
    counts = tuple(scores.get(unit) for unit in (*SCORED, "bytes"))
    return facts["task"], facts["datasets"], counts


def _mark_best(rows: Iterable[Row]) -> None:
    """Mark the row whose interval is beyond all others, if there is one."""
    ranked = sorted(rows, key=lambda row: _goodness(row)[0], reverse=True)
    if len(ranked) > 1:
        worst_of_first = _goodness(ranked[0])[0]
        ranked[0].best = all(worst_of_first > _goodness(row)[1] for row in ranked[1:])


def _goodness(row: Row) -> tuple[float, float]:
    """The bounds of a row's figure, the more the better."""
    assert row.tuned is not None
    assert row.metric is not None
    low, high = row.tuned["low"], row.tuned["high"]
    return (low, high) if more_is_better(row.metric) else (-high, -low)
