"""Settings that differ: from the defaults, and between runs."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import pandas as pd

from moray.config.schema.base import result_keys
from moray.config.schema.experiment import Sections
from moray.config.schema.train import Train
from moray.config.tasks import TASKS
from moray.results.rows import flat

# By default there is no adapter, so all of its keys differ.
_DEFAULTS = {"train": result_keys(Train())} | {
    task.section_name: result_keys(attrgetter(task.section_path)(Sections()))
    for task in TASKS.values()
    if task.section_path
}


def changed(settings: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings of a run that aren't the defaults: key, value, default."""
    defaults = dict(flat(_DEFAULTS))
    return [
        (key, value, defaults.get(key))
        for key, value in flat(settings)
        if value != defaults.get(key)
    ]


def differing(settings: pd.DataFrame) -> pd.DataFrame:
    """The settings that differ between runs.

    Args:
        settings: as in `Results`.

    Returns:
        A row for each run, a column for each key.
    """
    known = settings.dropna(how="all", subset=[name for name in settings if name != "run"])
    kept = [name for name in known if name == "run" or known[name].astype(str).nunique() > 1]
    return known[kept]
