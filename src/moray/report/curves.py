"""The curves of training, of few enough points for a page."""

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_METRICS = ["loss", "eval_loss", "learning_rate", "grad_norm"]
_SPEED = "_per_second"

Curve = tuple[list[int], list[float | None]]
"""Steps, and values where they are finite."""


def curves(history: pd.DataFrame, points: int) -> dict[str, dict[str, Curve]]:
    """The curves of each run, those of the metrics that it has, and its `speed` per second."""
    names = [name for name in history if name in _METRICS or name.endswith(_SPEED)]
    columns = {name: history[name].to_numpy(float) for name in names}
    if "start_loss" in history and "eval_loss" in history:
        # That of step 0.
        columns["eval_loss"] = history["eval_loss"].fillna(history["start_loss"]).to_numpy(float)
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


def times(history: pd.DataFrame, points: int) -> dict[str, Curve]:
    """At some steps of each run, the seconds that it has trained; without pauses between starts."""
    if "step_seconds" not in history:
        return {}
    by_run = {}
    for run, lines in history.dropna(subset="step_seconds").groupby("run", sort=False):
        steps = lines["step"].to_numpy()
        seconds = np.cumsum(np.diff(steps, prepend=0) * lines["step_seconds"].to_numpy(float))
        chosen = np.unique(np.linspace(0, len(steps) - 1, points).round().astype(int))
        values = [_short(value) for value in seconds[chosen].tolist()]
        by_run[str(run)] = ([0, *steps[chosen].tolist()], [0.0, *values])
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


def _short(value: float) -> float | None:
    """A value with five significant digits."""
    return if_finite(float(f"{value:.5g}"))


def if_finite(value: float) -> float | None:
    """None, as browsers read no NaN, where there is nothing to draw."""
    return value if math.isfinite(value) else None
