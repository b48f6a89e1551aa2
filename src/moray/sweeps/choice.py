"""The best of several runs, by their losses on the validation split."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from moray.train.history import evaluations


def validation_loss(run: Path) -> float | None:
    """The loss on the validation split of the model that a run exports.

    Args:
        run: folder of the run.

    Returns:
        In the unit of its training loss; None if it wasn't evaluated.
    """
    exported = json.loads((run / "train.json").read_text())["exported_step"]
    losses = evaluations(run, until=exported)
    return losses[max(losses)] if losses else None


def best(losses: Mapping[str, float]) -> str:
    """The name with the lowest loss, the first by name of equal ones; NaN counts as infinity."""
    return min(sorted(losses), key=lambda name: _rank(losses[name]))


def _rank(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss
