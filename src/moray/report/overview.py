"""Runs beside each other: a row of figures for each, settings over seeds, and which are best."""

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from moray.config.tasks import SCORED, TASKS
from moray.report.quantities import has_value
from moray.results import Results, Run, flat


@dataclass
class Row:
    """A run in the overview.

    Attributes:
        facts: its row of `Results.runs`.
        metric: the figure that it is judged by; None if it wasn't evaluated.
        base: that figure of its base, with the bounds of its interval.
        verdict: `better` or `worse` than the base, if the interval of the difference says so.
        outdated: whether it was evaluated, but not since it was trained.
        best: whether its interval is better than that of every run with the same held-out data.
    """

    facts: dict[str, Any]
    metric: str | None = None
    base: dict[str, float] | None = None
    tuned: dict[str, float] | None = None
    verdict: str | None = None
    best: bool = False
    outdated: bool = False


def overview(results: Results) -> list[Row]:
    """A row for each run, in their order."""
    rows, comparable = [], defaultdict(list)
    for facts in results.runs.to_dict("records"):
        facts = {name: value if has_value(value) else None for name, value in facts.items()}
        run = results.files[facts["run"]]
        row = _row(facts, run.figures("eval.json"))
        row.outdated = "eval.json" in run.outdated
        rows.append(row)
        if row.tuned is not None:
            comparable[held_out(run, facts)].append(row)
    for group in comparable.values():
        _mark_best(group)
    return rows


def verdict(metric: str, difference: dict[str, float], more: bool | None = None) -> str | None:
    """Whether a difference from the base is one, if its interval says so.

    Args:
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
    return not metric.endswith(("loss", "perplexity", "bits_per_byte", "undesirable_reward"))


def _row(facts: dict[str, Any], scores: dict[str, Any] | None) -> Row:
    if scores is None or facts["task"] not in TASKS:
        return Row(facts)
    metric = scores.get("headline", TASKS[facts["task"]].headline)
    outcome = verdict(metric, scores["difference"][metric])
    return Row(facts, metric, scores["base"][metric], scores["tuned"][metric], outcome)


def held_out(run: Run, facts: dict[str, Any]) -> tuple[Any, ...]:
    """A key that runs share if they were scored on the same documents, pairs or images."""
    scores = run.figures("eval.json") or {}
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


# Sweeps name their runs so.
_NAME = re.compile(r"(?P<setting>.+)-seed=\d+")
_SEED = "train.seed"
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """The figures of runs that differ only in their seed."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        return _mean(self.values)

    @property
    def deviation(self) -> float:
        """Their sample standard deviation, with one degree of freedom less than figures."""
        with np.errstate(invalid="ignore"):
            return float(np.std(self.values, ddof=1))


@dataclass(frozen=True)
class Difference:
    """A mean difference of figures that are paired by seed, and its 95 % interval.

    p is that of Student's paired t-test; NaN if all differences are equal.
    """

    value: float
    low: float
    high: float
    p: float


@dataclass
class Setting:
    """Runs of a sweep that differ only in their seed.

    Attributes:
        runs: their names, by seed.
        metric: the figure that they are judged by.
        from_base: of the runs from their bases.
        best: whether the mean is the best of the settings with the same held-out data.
        from_best: of the runs from those of the best setting with the same seeds; None for the
            best one, and if fewer than two seeds are the same.
    """

    name: str
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    metric: str
    base: Spread
    tuned: Spread
    from_base: Difference
    best: bool = False
    from_best: Difference | None = None


def over_seeds(results: Results, rows: Sequence[Row]) -> list[Setting]:
    """The settings that were run with two seeds or more."""
    by_setting: dict[tuple[Any, ...], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        run = results.files[row.facts["run"]]
        found = without_seed(run)
        if found and row.tuned is not None:
            name, settings, seed = found
            by_setting[held_out(run, row.facts), name, settings][seed] = row
    comparable = defaultdict(list)
    for (key, name, _), members in by_setting.items():
        if len(members) > 1:
            comparable[key].append((_setting(name, members), members))
    for group in comparable.values():
        _compare_with_best(group)
    return [setting for group in comparable.values() for setting, _ in group]


def seeds_of_settings(results: Results) -> dict[str, str]:
    """The name of the setting of each run that differs from others only in its seed."""
    members = defaultdict(list)
    for run in results.files.values():
        if found := without_seed(run):
            members[found[:2]].append(run.name)
    return {run: setting for (setting, _), runs in members.items() if len(runs) > 1 for run in runs}


def without_seed(run: Run) -> tuple[str, str, int] | None:
    """The name and the settings of a sweep's run without its seed, and the seed.

    None for other runs, and if nothing is known of it.
    """
    name = _NAME.fullmatch(run.name)
    settings = dict(flat({**run.settings, "data": run.data}))
    if not name or _SEED not in settings:
        return None
    # Whoever named it, it has to be the same run but for its seed.
    seed = settings.pop(_SEED)
    return name["setting"], str(settings), seed


def _setting(name: str, members: Mapping[int, Row]) -> Setting:
    seeds = tuple(sorted(members))
    base, tuned = ([_figure(members[seed], which) for seed in seeds] for which in ("base", "tuned"))
    metric = members[seeds[0]].metric
    assert metric
    runs = tuple(members[seed].facts["run"] for seed in seeds)
    of_both = (Spread(base), Spread(tuned), _difference(base, tuned))
    return Setting(name, seeds, runs, metric, *of_both)


def _compare_with_best(group: list[tuple[Setting, dict[int, Row]]]) -> None:
    candidates = [pair for pair in group if has_value(pair[0].tuned.mean)]
    if len(group) < 2 or not candidates:
        return
    choose = max if more_is_better(group[0][0].metric) else min
    best, of_best = choose(candidates, key=lambda pair: pair[0].tuned.mean)
    best.best = True
    for setting, members in group:
        common = sorted({*members} & {*of_best})
        if setting is not best and len(common) > 1:
            first, second = (
                [_figure(runs[seed], "tuned") for seed in common] for runs in (of_best, members)
            )
            setting.from_best = _difference(first, second)


def _figure(row: Row, which: str) -> float:
    value: float = getattr(row, which)["value"]
    return value


def _difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The difference of the second from the first.

    Source: Student, "The probable error of a mean", 1908.
    """
    with warnings.catch_warnings():
        # If all differences are equal, it warns; the page shows what it is then.
        warnings.simplefilter("ignore", RuntimeWarning)
        test = ttest_rel(second, first)
        bounds = test.confidence_interval(_CONFIDENCE)
        value = _mean(second) - _mean(first)
    return Difference(value, float(bounds.low), float(bounds.high), float(test.pvalue))


def _mean(values: Sequence[float]) -> float:
    # NaN if one is, or if some are infinite.
    with np.errstate(invalid="ignore"):
        return float(np.mean(values))
