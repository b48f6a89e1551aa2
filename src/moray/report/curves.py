"""The curves of a run, with few enough points to draw."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_METRICS = ["loss", "eval_loss", "learning_rate", "grad_norm"]
_SPEED = "_per_second"

Curve = tuple[list[int], list[float]]
"""Steps and values."""


def curves(history: pd.DataFrame, points: int) -> dict[str, dict[str, Curve]]:
    """The curves of each run, those that it has.

    Args:
        history: as in `Results`.
        points: maximum number of points of a curve.

    Returns:
        By run: `loss`, `eval_loss`, `learning_rate`, `grad_norm` and `speed` (units per second).
    """
    names = [name for name in history if name in _METRICS or name.endswith(_SPEED)]
    columns = {name: history[name].to_numpy(float) for name in names}
    steps = history["step"].to_numpy()
    found: dict[str, dict[str, Curve]] = {}
    for run, lines in history.groupby("run", sort=False).indices.items():
        found[run] = {}
        for name, column in columns.items():
            known = lines[~np.isnan(column[lines])]
            if len(known):
                kept = known[spread(column[known], points)]
                metric = "speed" if name.endswith(_SPEED) else name
                values = [_short(value) for value in column[kept].tolist()]
                found[run][metric] = (steps[kept].tolist(), values)
    return found


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


def _short(value: float) -> Any:
    """With five significant digits; None, as JSON has no NaN, where there is nothing to draw."""
    return float(f"{value:.5g}") if np.isfinite(value) else None
