"""Settings that differ between runs, as columns of tables, and names without them."""

import re
from collections.abc import Iterable, Mapping

import pandas as pd

# Wider tables can't be taken in; the rest is in a table of its own.
_MOST_COLUMNS = 6
# The table has columns of its own for them.
OWN_COLUMNS = {"run", "model", "dataset"}
# Headings, and the columns of `Results.runs`.
FACTS = {"Task": "task", "Starts from": "base", "Data": "datasets"}
# Sweeps name their runs so.
_VALUE = re.compile(r"-(?P<key>[A-Za-z_][A-Za-z0-9_.]*)=")


def differing_settings(settings: pd.DataFrame) -> pd.DataFrame:
    """The settings that differ between runs: a row for each run, a column for each key.

    A key that only some have, such as one of `adapter`, differs. Of unfinished runs, the model and
    the data aren't known.
    """
    rows = settings.dropna(how="all", subset=[name for name in settings if name != "run"])

    def differs(name: str) -> bool:
        unknown = name in OWN_COLUMNS or name.startswith("data.")
        values = rows[name].dropna() if unknown else rows[name]
        return len({*map(str, values)}) > 1

    return rows[[name for name in rows if name == "run" or differs(name)]]


def columns_of(differing: pd.DataFrame) -> dict[str, str]:
    """The settings that the comparison has columns for: by dotted key, their heading.

    Of too many, those that names of runs have in them.
    """
    keys = [key for key in differing if key not in OWN_COLUMNS]
    if len(keys) > _MOST_COLUMNS:
        named = {key for run in differing["run"] for key in _VALUE.findall(run)}
        keys = [key for key in keys if any(_is_short_for(name, key) for name in named)]
    ends = [key.rpartition(".")[2] for key in keys]
    return {
        key: end if ends.count(end) == 1 else key
        for key, end in list(zip(keys, ends, strict=True))[:_MOST_COLUMNS]
    }


def in_one_sentence(runs: pd.DataFrame) -> dict[str, str]:
    """Facts that all of several runs have in common, by the headings of their columns."""
    if len(runs) < 2:
        return {}
    values = {heading: {*runs[fact]} for heading, fact in FACTS.items()}
    return {heading: found.pop() for heading, found in values.items() if len(found) == 1}


def short_names(names: Iterable[str], columns: Mapping[str, str]) -> dict[str, str]:
    """The names without the values that are in columns: of a sweep's run, the sweep's."""

    def short(name: str) -> str:
        named = _VALUE.findall(name)
        shown = all(any(_is_short_for(one, key) for key in columns) for one in named)
        return _VALUE.split(name)[0] if named and shown else name

    return {name: short(name) for name in names}


def label(name: str) -> str:
    """The name of a sweep's run as words: `tuned, learning_rate 0.0005, seed 1`."""
    return _VALUE.sub(r", \g<key> ", name)


def _is_short_for(name: str, key: str) -> bool:
    return f".{key}".endswith(f".{name}")
