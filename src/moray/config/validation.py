"""Turn pydantic's validation errors into messages about the config as the user wrote it."""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from moray.config import extras
from moray.config.schema.datasets import CREDENTIALS
from moray.config.schema.experiment import Experiment, Run
from moray.errors import UserError

_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "invalid_key": "text as a key",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "missing": "a value",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_type": "text",
    "too_short": "at least {min_length} entry",
    "union_tag_invalid": "one of {expected_tags}",
    "union_tag_not_found": "a value",
}

# Descriptions of patterns that a reader doesn't see at once.
_FORMS = {
    r"^[A-Za-z0-9][A-Za-z0-9_-]*$": "a name of letters, digits, - and _",
    r"\{[{%]": "the text of a Jinja template, which has {{ or {%, in the lines below "
    "chat_template: |, or the path of a .jinja file",
    r'^[^"\r\n]$': "one character, which is no quote",
    "^[0-9a-f]{40}$": "the hash of a commit, 40 hexadecimal digits",
    "^[0-9a-f]{64}$": "a SHA-256, 64 hexadecimal digits",
}

# Pydantic's names for the branches of the unions in the schema, besides those of literals.
_BRANCHES = {"BySplit", "HubSplits", "RunRef", "bool", "str", "constrained-str", "list[str]"}
_BRANCHES |= {"BestRef", "tagged-union[RunRef,BestRef]", "WorkerRange", "list[constrained-int]"}
_BRANCHES |= {"function-after[expanduser(), str]", "list[function-after[expanduser(), str]]"}
_BRANCHES |= {"Range", "list", "tagged-union[Range,list[any]]"}
_BRANCHES |= {"dict[constrained-str,constrained-float]", "dict[str,constrained-float]"}
_BRANCHES |= {"constrained-int", "[key]", "constrained-float"}

# In these sections, pydantic puts the source of an entry after its name. A source can have the same
# name as one of its own keys.
_BY_SOURCE = ("datasets", "models")


def describe(error: ValidationError, written: Mapping[str, Any]) -> list[UserError]:
    """One fault for each place in the config that is wrong.

    Args:
        error: from validating the config with `defaults` filled into the runs.
        written: the config before that, so that a fault in `defaults` is reported once.
    """
    faults: dict[tuple[str, ...], list[ErrorDetails]] = {}
    details = error.errors(include_url=False)
    defaults = [(d["loc"][1:], d["msg"]) for d in details if d["loc"][:1] == ("defaults",)]
    for detail in details:
        path, is_written = _locate(detail, written)
        # Keys that conflict in the defaults also conflict in each run that adds to them.
        inherited = (detail["loc"][2:], detail["msg"]) in defaults
        if is_written and not (detail["type"] == "value_error" and inherited):
            faults.setdefault(path, []).append(detail)
    return [
        _fault(path, details)
        for path, details in faults.items()
        # If the error is inside one branch of a union, the errors of the other branches don't
        # matter.
        if not any(other[: len(path)] == path and other != path for other in faults)
    ]


def _locate(detail: ErrorDetails, written: Any) -> tuple[tuple[str, ...], bool]:
    """The path as written, and whether the fault is in what the user wrote.

    Pydantic puts the names of union branches between the keys; they are dropped.
    """
    node: Any = written
    path: list[str] = []
    for position, part in enumerate(detail["loc"]):
        if position == 2 and detail["loc"][0] in _BY_SOURCE:
            continue
        if _holds(node, part):
            node = node[part]
        elif detail["type"] == "missing" and position == len(detail["loc"]) - 1:
            return (*path, str(part)), True
        elif part in _BRANCHES or str(part).startswith("literal["):
            continue
        else:
            return tuple(path), False
        path.append(str(part))
    if detail["type"].startswith("union_tag_"):
        path.append("source")
    return tuple(path), True


def _holds(node: Any, part: str | int) -> bool:
    if isinstance(node, Mapping):
        return part in node
    return isinstance(node, list) and isinstance(part, int)


def _fault(keys: tuple[str, ...], details: list[ErrorDetails]) -> UserError:
    detail, path = details[0], ".".join(keys)
    if detail["type"] == "extra_forbidden":
        return UserError(path, "unknown key", _suggestion(keys, detail["loc"]))
    if detail["type"] == "value_error":
        key, _, rest = str(detail["ctx"]["error"]).partition(": ")
        problem, _, remedy = rest.rpartition("; ")
        return UserError(f"{path}.{key}".lstrip("."), problem, remedy)
    expected = " or ".join(dict.fromkeys(map(_expected, details)))
    where = f"{keys[0]} in " if keys and keys[0] in Experiment.model_fields else ""
    remedy = f"see {where}docs/configuration.md"
    if detail["type"] in ("missing", "union_tag_not_found"):
        return UserError(path, "missing", f"add it, {remedy}")
    value = detail["input"]
    if detail["type"] == "union_tag_invalid":
        value = value["source"]
    values = [value for detail in details for value in _values(detail)]
    if isinstance(value, str) and (close := difflib.get_close_matches(value, values, n=1)):
        remedy = f"did you mean {close[0]}?"
    if isinstance(value, bool) and "text" in expected:
        remedy = "put quotes around words that YAML reads as true or false: on, yes, off, no"
    if keys[-1:] in (("model",), ("dataset",)) and isinstance(value, str) and "/" in value:
        remedy = f"add it under {keys[-1]}s by a name of yours, and put that name here"
    got = CREDENTIALS.sub("://…@", repr(value)) if not isinstance(value, Mapping) else "a mapping"
    return UserError(path or "config", f"got {got[:80]}, expected {expected}", remedy)


def _expected(detail: ErrorDetails) -> str:
    if form := _FORMS.get(str(detail.get("ctx", {}).get("pattern"))):
        return form
    template = _EXPECTED.get(detail["type"])
    limits = {
        name: f"{limit:g}" if isinstance(limit, float) else limit
        for name, limit in detail.get("ctx", {}).items()
    }
    return template.format(**limits) if template else detail["msg"]


def _values(detail: ErrorDetails) -> list[str]:
    """The words that a key can have."""
    if detail["type"] == "bool_parsing":
        return ["true", "false"]
    context = detail.get("ctx", {})
    return re.findall("'([^']*)'", str(context.get("expected_tags", context.get("expected"))))


def _suggestion(path: tuple[str, ...], loc: tuple[int | str, ...]) -> str:
    *parents, key = path
    here, nowhere = _names_of_peers()
    if key in nowhere:
        return f"remove it: {nowhere[key]}"
    models = [model for model in _models_at(parents) if _is_of_source(model, loc)]
    keys = [name for model in models for name in model.model_fields]
    places = [here[key]] if key in here else _elsewhere(key, parents)
    # An entry of the right kind, of a source that doesn't have the key.
    if places and places[0].split(".")[0] not in parents[:1]:
        return f"did you mean {' or '.join(_relative_place(parents, place) for place in places)}?"
    if close := difflib.get_close_matches(key, keys, n=1):
        return f"did you mean {close[0]}?"
    return f"expected one of {', '.join(keys)}"


def _names_of_peers() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Keys of other trainers: those with a place here, and those without; none if not known."""
    folder = extras.COMMANDS["import"]
    if not extras.is_there(folder):
        return {}, {}
    peers = extras.part(folder, "peers")
    return peers.HERE, peers.NOWHERE


def _elsewhere(key: str, parents: list[str]) -> list[str]:
    """The places of a key that is in other sections of a run."""
    if len(parents) > 3 or parents[:1] not in ([], ["defaults"], ["runs"]):
        return []
    sections = {name: [*models_in(field.annotation)] for name, field in Run.model_fields.items()}
    return [
        f"{name}.{key}"
        for name, models in sections.items()
        if any(key in model.model_fields for model in models) and name not in ("model", "search")
    ]


def _relative_place(parents: list[str], place: str) -> str:
    """A place, as it is written from a section; that of a run is below its name or `defaults`."""
    match parents:
        case ["defaults", *inside] | ["runs", _, *inside]:
            return place.removeprefix(f"{'.'.join(inside)}.")
    return place if place.startswith(("datasets.", "models.")) else f"defaults.{place}"


def _models_at(path: list[str]) -> list[type[BaseModel]]:
    """The models that can validate a section."""
    models: list[type[BaseModel]] = [Experiment]
    for position, part in enumerate(path):
        # The name of an entry, which can equal that of a key; the models stay those of its mapping.
        if (position == 1 and path[0] != "defaults") or path[:position][-1:] == ["space"]:
            continue
        annotations = [
            model.model_fields[part].annotation for model in models if part in model.model_fields
        ]
        models = [inner for annotation in annotations for inner in models_in(annotation)]
    return models


def _is_of_source(model: type[BaseModel], loc: tuple[int | str, ...]) -> bool:
    source = model.model_fields.get("source")
    return source is None or bool({*get_args(source.annotation)} & {*loc[2:3]})


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in the annotation of a key."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)
