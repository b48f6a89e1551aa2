"""Expand the sweeps of a config into ordinary runs, named after their values."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pydantic import TypeAdapter, ValidationError

from moray.config.places import moved, run_and_key
from moray.config.schema.base import RunName
from moray.config.schema.experiment import Grid, Member, Sweep
from moray.errors import ConfigError, UserError

_SEED = "train.seed"
_KEYS = ("grid", "seeds")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.=+-]")
_RUN_NAME = TypeAdapter(RunName)

# Where a run's keys are written, below its sweep, by dotted key.
_Places = dict[str, str]


@dataclass
class Expansion:
    """The runs of a config with sweeps expanded.

    Attributes:
        runs: as written, without `grid` and `seeds`.
    """

    runs: dict[str, Any] = field(default_factory=dict)
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    _places: dict[str, tuple[str, _Places]] = field(default_factory=dict)

    def as_written(self, faults: list[UserError]) -> list[UserError]:
        """The faults with the paths of what the user wrote, one for each path."""
        return moved(faults, self._path)

    def _path(self, fault: UserError) -> str:
        found = run_and_key(fault.path, self._places)
        if found is None:
            return fault.path
        run, key = found
        sweep, places = self._places[run]
        for swept_key, place in places.items():
            if f"{key}.".startswith(f"{swept_key}."):
                # Whatever its value.
                place = f"grid.{swept_key}" if fault.problem == "unknown key" else place
                return f"runs.{sweep}.{place}{key.removeprefix(swept_key)}"
            if key and swept_key.startswith(f"{key}."):
                return f"runs.{sweep}.grid.{swept_key}"
        return f"runs.{sweep}.{key}".removesuffix(".")


def expand(runs: Mapping[str, Any]) -> Expansion:
    """Replace each run that has a `grid` or `seeds` by the runs that it stands for.

    Sections that aren't of the right form are left as they are, for the schema to refuse.

    Raises:
        ConfigError: if a grid contradicts itself, or its runs can't have their names.
    """
    expansion, faults = Expansion(), list[UserError]()
    for name, section in runs.items():
        grid = _grid_of(section)
        if grid is None:
            expansion.runs[name] = section
        elif contradictions := list(_contradictions(name, grid, section)):
            faults += contradictions
        else:
            faults += _expand_one(name, section, grid, runs, expansion)
    if faults:
        raise ConfigError(faults)
    return expansion


def _grid_of(section: Any) -> Grid | None:
    if not isinstance(section, Mapping):
        return None
    try:
        grid = Grid.model_validate({key: section[key] for key in _KEYS if key in section})
    except ValidationError:
        return None
    return grid if grid.grid or grid.seeds else None


def _contradictions(sweep: str, grid: Grid, section: Mapping[str, Any]) -> Iterator[UserError]:
    if section.get("search") is not None:
        yield UserError(
            f"runs.{sweep}.search",
            f"{sweep} is a sweep, because of its {'grid' if grid.grid else 'seeds'}, and a search "
            "takes one run",
            "remove one of them",
        )
    keys = sorted(grid.grid or {})
    for key in keys:
        path = f"runs.{sweep}.grid.{key}"
        if (first := key.split(".")[0]) in (*_KEYS, "search"):
            what = "search" if first == "search" else "grid"
            yield UserError(path, f"a {what} can't be in a grid", "remove it")
        for other in keys:
            if key.startswith(f"{other}."):
                yield UserError(path, f"{other} is in the grid too", "remove one of them")
    if grid.seeds is not None and _SEED in keys:
        yield UserError(f"runs.{sweep}.seeds", f"{_SEED} is in the grid too", "remove one of them")


def _expand_one(
    sweep: str, section: Mapping[str, Any], grid: Grid, runs: Mapping[str, Any], into: Expansion
) -> Iterator[UserError]:
    base = {key: value for key, value in section.items() if key not in _KEYS}
    # A name doesn't depend on the order in which keys and values are written.
    axes = [(key, list(enumerate(values))) for key, values in sorted((grid.grid or {}).items())]
    short = _short_keys([key for key, _ in axes])
    members = into.sweeps.setdefault(sweep, {})
    for combination in product(*(values for _, values in axes)):
        values = {key: value for (key, _), (_, value) in zip(axes, combination, strict=True)}
        words = [word for key in values for word in _words(short[key], values[key])]
        setting = "-".join([sweep, *words])
        places = {
            key: f"grid.{key}.{position}"
            for (key, _), (position, _) in zip(axes, combination, strict=True)
        }
        for seed, place in _seeds(grid):
            name = setting if seed is None else f"{setting}-seed={seed}"
            if fault := _fault_of_name(sweep, name, runs, into):
                yield fault
                continue
            run = base
            for key, value in [*values.items(), *([] if seed is None else [(_SEED, seed)])]:
                run = with_value(run, key, value)
            into.runs[name] = _from_same_seed(run, seed, runs)
            members[name] = Member(setting, values, seed)
            into._places[name] = (sweep, places if seed is None else places | {_SEED: place})


def _from_same_seed(run: Any, seed: int | None, runs: Mapping[str, Any]) -> Any:
    """The run, starting from the run with its seed if it names a sweep over seeds alone."""
    model = run.get("model")
    start = model.get("run") if isinstance(model, Mapping) else None
    grid = _grid_of(runs[start]) if isinstance(start, str) and start in runs else None
    if grid is None or grid.grid or seed not in (one for one, _ in _seeds(grid)):
        return run
    return {**run, "model": {**model, "run": f"{start}-seed={seed}"}}


def _seeds(grid: Grid) -> list[tuple[int | None, str]]:
    if grid.seeds is None:
        return [(None, "")]
    if isinstance(grid.seeds, int):
        return [(seed, "seeds") for seed in range(grid.seeds)]
    return [(seed, f"seeds.{position}") for position, seed in enumerate(grid.seeds)]


def _fault_of_name(
    sweep: str, name: str, runs: Mapping[str, Any], into: Expansion
) -> UserError | None:
    path = f"runs.{sweep}.{'grid' if _KEYS[0] in runs[sweep] else 'seeds'}"
    if name in into.sweeps[sweep]:
        return UserError(path, f"makes two runs named {name}", "remove one of the equal values")
    if name in runs or name in into.runs:
        return UserError(
            path, f"makes a run named {name}, which another entry makes too", "rename one of them"
        )
    try:
        _RUN_NAME.validate_python(name)
    except ValidationError:
        return UserError(
            path,
            f"makes a run named {name}, which has {len(name)} characters, expected at most 100",
            "shorten the name of the sweep or the values",
        )
    return None


def _short_keys(keys: list[str]) -> dict[str, str]:
    """The last part of each key where no other has the same, otherwise the key."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {
        key: end if ends.count(end) == 1 and end != "seed" else key
        for key, end in zip(keys, ends, strict=True)
    }


def _words(key: str, value: Any) -> Iterator[str]:
    """`key=value` for a name; for a mapping, one for each of its keys."""
    if isinstance(value, Mapping) and value:
        for inner in sorted(value, key=str):
            yield from _words(f"{key}.{inner}", value[inner])
    else:
        yield _NOT_IN_NAMES.sub("_", f"{key}={_word(value)}")


def _word(value: Any) -> str:
    """A value as text; equal numbers give equal texts, however they are written."""
    if isinstance(value, list):
        return "+".join(map(_word, value))
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    if not math.isfinite(number):
        return str(value)
    return str(int(number)) if number.is_integer() else repr(number)


def with_value(section: Any, key: str, value: Any) -> dict[str, Any]:
    """A section with a value at a dotted key; mappings on the way are made."""
    inner = section if isinstance(section, Mapping) else {}
    first, _, rest = key.partition(".")
    return {**inner, first: with_value(inner.get(first), rest, value) if rest else value}
