"""Validation errors of pydantic in the words of someone who wrote the config."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from moray.config.schema import Experiment
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
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "missing": "a value",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_type": "text",
    "union_tag_invalid": "one of {expected_tags} as source",
    "union_tag_not_found": "a key `source`",
}


# How pydantic spells the branches of the unions in the schema.
_BRANCHES = {"python-stdlib", "files", "scratch", "path", "hub", "RunRef", "bool", "str"} | {
    "constrained-str",
    "literal['auto']",
    "list[str]",
    "[key]",
}


def describe(error: ValidationError, written: Mapping[str, Any]) -> list[UserError]:
    """One fault for each place in the config that is wrong.

    Args:
        error: what validating the config, with `defaults` filled into the runs, gave.
        written: the config before that, so that a fault in `defaults` is told once.
    """
    faults: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        path, stands_there = _locate(detail, written)
        if stands_there:
            faults.setdefault(path, []).append(detail)
    return [
        _fault(path, details)
        for path, details in faults.items()
        # Where a branch of a union fits well enough to be looked into, the other branches
        # have nothing to say.
        if not any(other.startswith(f"{path}.") for other in faults)
    ]


def _locate(detail: ErrorDetails, written: Any) -> tuple[str, bool]:
    """The dotted path as written, and whether it is the user's own text that is at fault.

    Pydantic puts names of union branches between the keys; they are dropped.
    """
    node: Any = written
    path: list[str] = []
    for position, part in enumerate(detail["loc"]):
        if _holds(node, part):
            node = node[part]
        elif detail["type"] == "missing" and position == len(detail["loc"]) - 1:
            return ".".join([*path, str(part)]), True
        elif part in _BRANCHES:
            continue
        else:
            return ".".join(path), False
        path.append(str(part))
    return ".".join(path), True


def _holds(node: Any, part: str | int) -> bool:
    if isinstance(node, Mapping):
        return part in node
    return isinstance(node, list) and isinstance(part, int)


def _fault(path: str, details: list[ErrorDetails]) -> UserError:
    detail = details[0]
    if detail["type"] == "extra_forbidden":
        return UserError(path, "unknown key", _suggestion(path))
    if detail["type"] == "value_error":
        key, _, rest = str(detail["ctx"]["error"]).partition(": ")
        problem, _, remedy = rest.rpartition("; ")
        return UserError(f"{path}.{key}".lstrip("."), problem, remedy)
    expected = " or ".join(dict.fromkeys(map(_expected, details)))
    section = path.split(".")[0] if path else "config"
    remedy = f"see {section} in docs/configuration.md"
    if detail["type"] == "missing":
        return UserError(path, f"missing, expected {expected}", f"add it, {remedy}")
    got = repr(detail["input"]) if not isinstance(detail["input"], Mapping) else "a mapping"
    return UserError(path or "config", f"got {got[:80]}, expected {expected}", remedy)


def _expected(detail: ErrorDetails) -> str:
    template = _EXPECTED.get(detail["type"])
    return template.format(**detail.get("ctx", {})) if template else detail["msg"]


def _suggestion(path: str) -> str:
    *parents, key = path.split(".")
    known = [name for model in _models_at(parents) for name in model.model_fields]
    if close := difflib.get_close_matches(key, known, n=1):
        return f"did you mean {close[0]}?"
    return f"expected one of {', '.join(known)}"


def _models_at(path: list[str]) -> list[type[BaseModel]]:
    """The models that a section may be validated by."""
    models: list[type[BaseModel]] = [Experiment]
    for part in path:
        annotations = [
            model.model_fields[part].annotation for model in models if part in model.model_fields
        ]
        # A part that is no field is the name of an entry, of the same models as its mapping.
        if annotations:
            models = [found for annotation in annotations for found in _models_in(annotation)]
    return models


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
