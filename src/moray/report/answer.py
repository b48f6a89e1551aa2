"""What the runs have shown: a sentence with its interval and a picture for each held-out data."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moray.config.tasks import SCORED
from moray.report.overview import Row, Setting, held_out, more_is_better, verdict
from moray.results import Results, Run

Figures = Mapping[str, float]
_BOUNDS = ("low", "value", "high")
# Longer pictures hide what is below them.
_MOST_LINES, _MOST_ANSWERS = 16, 3


@dataclass(frozen=True)
class Line:
    """A run, or a setting with its seeds, beside others that were scored on the same data.

    Attributes:
        run: the run, or one of the setting's.
        name: the run's, or the setting's.
        tuned: its figure with the bounds of its interval; of a setting, mean and range.
        difference: from its base, with the bounds of its interval.
        seeds: the figure of each seed; empty for a run.
        best: whether it is better than all others, as `overview` has it.
    """

    run: str
    name: str
    base: Figures
    tuned: Figures
    difference: Figures
    verdict: str | None
    seeds: tuple[float, ...] = ()
    deviation: float | None = None
    best: bool = False
    places: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """What runs that were scored on the same held-out data have shown, the best line first.

    Attributes:
        scored: what they were scored on, such as `1,147 documents`.
        lead: of the first setting over the second, with seeds paired; None without seeds.
        left_out: number of lines that aren't in the picture.
    """

    metric: str
    more_is_better: bool
    scored: str
    confidence: float
    lines: Sequence[Line]
    lead: Figures | None
    axis: tuple[float, float] | None
    left_out: int = 0


def answers(results: Results, rows: Sequence[Row], settings: Sequence[Setting]) -> list[Answer]:
    """An answer for each held-out data; first of the runs that no other run starts from."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row.tuned is not None:
            key = held_out(results.files[row.facts["run"]], row.facts)
            groups[(row.metric, *key)].append(row)
    starts = {row.facts["base"] for row in rows}
    ordered = sorted(groups.values(), key=lambda g: any(r.facts["run"] in starts for r in g))
    return [_answer(results, group, settings) for group in ordered[:_MOST_ANSWERS]]


def _answer(results: Results, rows: Sequence[Row], settings: Sequence[Setting]) -> Answer:
    metric = rows[0].metric
    assert metric
    names = {row.facts["run"] for row in rows}
    of_group = [setting for setting in settings if names.issuperset(setting.runs)]
    in_setting = {run for setting in of_group for run in setting.runs}
    lines = [
        *map(_line_of_setting, of_group),
        *(_line_of_run(results, row) for row in rows if row.facts["run"] not in in_setting),
    ]
    more = more_is_better(metric)
    lines.sort(key=lambda line: _rank(line.tuned["value"], more))
    evaluation = results.files[rows[0].facts["run"]].figures("eval.json") or {}
    axis = _axis(lines)
    return Answer(
        metric=metric,
        more_is_better=more,
        scored=next((f"{evaluation[unit]:,} {unit}" for unit in SCORED if unit in evaluation), ""),
        confidence=evaluation.get("confidence", 0.95),
        lines=[replace(line, places=_places(line, axis)) for line in lines[:_MOST_LINES]],
        lead=_lead(lines, of_group),
        axis=axis,
        left_out=max(0, len(lines) - _MOST_LINES),
    )


def _rank(value: float, more: bool) -> tuple[bool, float]:
    # What isn't a number comes last.
    return not math.isfinite(value), -value if more else value


def _line_of_run(results: Results, row: Row) -> Line:
    run: Run = results.files[row.facts["run"]]
    evaluation = run.figures("eval.json") or {}
    assert row.base is not None
    assert row.tuned is not None
    return Line(
        run=run.name,
        name=run.name,
        base=row.base,
        tuned=row.tuned,
        difference=evaluation["difference"][row.metric],
        verdict=row.verdict,
        best=row.best,
    )


def _line_of_setting(setting: Setting) -> Line:
    difference = {name: getattr(setting.from_base, name) for name in _BOUNDS}
    return Line(
        run=setting.runs[0],
        name=setting.name,
        base=_range(setting.base.values),
        tuned=_range(setting.tuned.values),
        difference=difference,
        verdict=verdict(setting.metric, difference),
        seeds=tuple(setting.tuned.values),
        deviation=setting.tuned.deviation,
    )


def _range(values: Sequence[float]) -> Figures:
    return {"low": min(values), "value": sum(values) / len(values), "high": max(values)}


def _lead(lines: Sequence[Line], settings: Sequence[Setting]) -> Figures | None:
    """The difference of the second setting from the first, if both have the same seeds."""
    if len(lines) < 2 or not lines[0].seeds:
        return None
    second = next((setting for setting in settings if setting.name == lines[1].name), None)
    found = second.from_best if second else None
    return {name: getattr(found, name) for name in _BOUNDS} if found else None


def _axis(lines: Iterable[Line]) -> tuple[float, float] | None:
    """The ends of the picture's scale; None if nothing can be drawn."""
    values = [value for line in lines for value in _drawn(line) if math.isfinite(value)]
    if not values or min(values) == max(values):
        return None
    margin = (max(values) - min(values)) * 0.03
    return min(values) - margin, max(values) + margin


def _drawn(line: Line) -> Iterator[float]:
    for figures in (line.base, line.tuned):
        yield from (figures[name] for name in _BOUNDS)
    yield from line.seeds


def _places(line: Line, axis: tuple[float, float] | None) -> dict[str, Any] | None:
    """Where a line's marks are, in percent of the picture's width; None if they are nowhere."""
    if axis is None or not all(map(math.isfinite, _drawn(line))):
        return None
    low, high = axis

    def place(value: float) -> float:
        return round(100 * (value - low) / (high - low), 2)

    return {
        "base": {name: place(line.base[name]) for name in _BOUNDS},
        "tuned": {name: place(line.tuned[name]) for name in _BOUNDS},
        "seeds": [place(value) for value in line.seeds],
    }
