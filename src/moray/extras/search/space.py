"""Searches over the settings of runs: their checks, and what they depend on."""

from collections.abc import Iterator
from itertools import product
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from moray.config.grid import with_value
from moray.config.plan import task, train_config
from moray.config.references import faults_of_run
from moray.config.schema.base import is_execution_only, result_keys
from moray.config.schema.experiment import Experiment, Range, Run
from moray.config.tasks import TASKS
from moray.config.validation import describe, models_in
from moray.errors import UserError

# Settings that decide which rows validation losses are measured on.
_MEASURE = ("train.eval_rows",)


def check_searches(experiment: Experiment) -> list[UserError]:
    """All faults of the searches of an experiment whose runs are sound."""
    return [
        fault
        for name, run in experiment.runs.items()
        if run.search
        for fault in _search(experiment, name, run)
    ]


def search_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """The settings that a search depends on: those of a training, without the keys that it sets."""
    section = experiment.runs[run]
    assert section.search
    config = train_config(experiment, run)
    # A trial only continues from its own checkpoints.
    config["train"].pop("resume_from_checkpoint", None)
    for key in section.search.space:
        name, last = key.removeprefix("data.").split(".")
        # An adapter that only the search makes has no section yet.
        (config[name] or {}).pop(last, None)
    space = {key: _range_or_choices(section, key) for key in sorted(section.search.space)}
    search = {"seed": section.search.seed, "space": space, "trials": section.search.trials}
    return dict(sorted({**config, "search": search}.items()))


def candidates(run: Run) -> Iterator[Run]:
    """The run with each value that its search lists or that bounds a range, one at a time."""
    assert run.search
    for key in run.search.space:
        for value, _ in _samples(run, key):
            yield Run.model_validate(with_value(run.model_dump(), key, value))


def _search(experiment: Experiment, name: str, run: Run) -> Iterator[UserError]:
    assert run.search
    fields: list[UserError] = []
    for key in run.search.space:
        path = f"runs.{name}.search.space.{key}"
        if fault := _unfit(experiment, name, path, key):
            fields.append(fault)
            continue
        faults: dict[str, UserError] = {}
        for value, place in _samples(run, key):
            if not place and faults:
                break
            for fault in _faults(experiment, name, with_value(run.model_dump(), key, value)):
                unknown = fault.problem == "unknown key"
                where = path if unknown or not place else f"{path}.{place}"
                faults.setdefault(where, UserError(where, fault.problem, fault.remedy))
        fields += faults.values()
    yield from fields or _combinations(name, run)


def _unfit(experiment: Experiment, name: str, path: str, key: str) -> UserError | None:
    """Why a key can't be searched over, whatever its values."""
    fields = _fields(key)
    if not fields:
        # Unknown; any value of it says so.
        return None
    facts = TASKS[task(experiment, name)]
    own = facts.section_path if facts.searches_section else ""
    if key.split(".")[0] not in ("train", "adapter") and not (own and key.startswith(own)):
        kinds = f"train, adapter or {own}" if own else "train or adapter"
        return UserError(path, "can't be searched", f"choose a key of {kinds}")
    if list(models_in(fields[-1].annotation)):
        return UserError(path, "is a section", "choose one of its keys")
    if any(map(is_execution_only, fields)):
        return UserError(path, "doesn't change the result of a training", "remove it")
    if key in _MEASURE:
        return UserError(path, "changes what validation losses are measured on", "remove it")
    run = experiment.runs[name]
    assert run.search
    types = _types(fields[-1].annotation)
    if isinstance(run.search.space[key], Range) and not types & {int, float}:
        return UserError(path, "takes no numbers, so it can't have a range", "list its values")
    return None


def _samples(run: Run, key: str) -> list[tuple[Any, str]]:
    """Values that stand for all that a search can choose, and where each is written."""
    assert run.search
    values = run.search.space[key]
    if not isinstance(values, Range):
        return [(value, str(position)) for position, value in enumerate(values)]
    ends: list[tuple[Any, str]] = [(values.low, "low"), (values.high, "high")]
    if not _is_integer(key):
        return ends
    # Its neighbour too: one of two numbers isn't a multiple of a number above 1.
    return [*ends, (values.low + 1, "")]


def _faults(experiment: Experiment, name: str, run: dict[str, Any]) -> list[UserError]:
    variant = _validate(name, run)
    return variant if isinstance(variant, list) else [*faults_of_run(experiment, name, variant)]


def _validate(name: str, run: dict[str, Any]) -> Run | list[UserError]:
    config = {"datasets": {}, "models": {}, "runs": {name: run}}
    try:
        return Experiment.model_validate(config).runs[name]
    except ValidationError as error:
        return describe(error, config)


def _combinations(name: str, run: Run) -> Iterator[UserError]:
    """A fault if values that are sound alone contradict each other."""
    assert run.search
    keys = list(run.search.space)
    for values in product(*(_ends(run, key) for key in keys)):
        whole = run.model_dump()
        for key, value in zip(keys, values, strict=True):
            whole = with_value(whole, key, value)
        variant = _validate(name, whole)
        if isinstance(variant, list):
            key = variant[0].path.removeprefix(f"runs.{name}.")
            yield UserError(
                f"runs.{name}.search.space",
                f"some combinations are invalid: {key}: {variant[0].problem}",
                "leave some of them out",
            )
            return


def _ends(run: Run, key: str) -> list[Any]:
    """The least and the greatest value; all values if they aren't numbers."""
    values = [value for value, place in _samples(run, key) if place]
    if all(isinstance(value, int | float) for value in values):
        return [min(values), max(values)]
    return values


def _range_or_choices(run: Run, key: str) -> dict[str, Any]:
    """A key's values in a form that doesn't depend on how they are written."""
    assert run.search
    values = run.search.space[key]
    if isinstance(values, Range):
        number: type = int if _is_integer(key) else float
        bounds = {"high": number(values.high), "low": number(values.low)}
        return {**bounds, "integer": _is_integer(key), "log": values.log}
    return {"choices": [_normalise(run, key, value) for value in values]}


def _normalise(run: Run, key: str, value: Any) -> Any:
    variant = Run.model_validate(with_value(run.model_dump(), key, value))
    *parents, last = key.split(".")
    section: Any = variant
    for parent in parents:
        section = getattr(section, parent)
    return result_keys(section)[last]


def _fields(key: str) -> list[FieldInfo]:
    """The fields of a run on the way to a key; none if there is no such key."""
    path: list[FieldInfo] = []
    models: list[Any] = [Run]
    for part in key.split("."):
        fields = (model.model_fields[part] for model in models if part in model.model_fields)
        if (field := next(fields, None)) is None:
            return []
        path.append(field)
        models = list(models_in(field.annotation))
    return path


def _is_integer(key: str) -> bool:
    fields = _fields(key)
    return bool(fields) and float not in _types(fields[-1].annotation)


def _types(annotation: Any) -> set[Any]:
    """The types of a key, without constraints."""
    if get_origin(annotation) is Annotated:
        return _types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_types, get_args(annotation)))
    return {annotation}
