"""The base class of the config's sections, and what results depend on of their keys."""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

EXECUTION_ONLY = "moray:execution-only"
_ADDED = "moray:added"
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
# Those of a sweep's runs have values in them. Files, Snakemake's wildcards and object stores allow
# these characters.
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.=+-]{0,99}$")]
# What follows if a result differs from what the plain library computes on the same rows.
Proofs = Literal["refuse", "warn", "off"]
PositiveInt = Annotated[int, Field(gt=0)]
# What PyTorch takes.
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
RepoId = Annotated[
    str, Field(description="`owner/name` on the hub.", pattern=r"^[^/\s]+(/[^/\s]+)?$")
]
Revision = Annotated[
    str,
    Field(
        description="Commit hash, 40 hexadecimal digits. Branches are not accepted, because they "
        "can move.",
        pattern=r"^[0-9a-f]{40}$",
    ),
]
# A path, in which `~` is the user's home, as a shell would have it.
UserPath = Annotated[str, AfterValidator(os.path.expanduser)]
# A file is read before the config is checked; editors see its path.
ChatTemplate = Annotated[
    str,
    Field(pattern=r"\{[{%]", json_schema_extra={"pattern": r"\{[{%]|\.(jinja2?|j2)$"}),
]
TemplateVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Section(BaseModel):
    """A frozen section of the config; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, values: Any) -> Any:
        """Take numbers such as 1e2 for whole ones; YAML 1.1 takes them for text."""
        if not isinstance(values, Mapping):
            return values
        fields = cls.model_fields
        return {
            key: _whole(value) if key in fields and _is_whole(fields[key]) else value
            for key, value in values.items()
        }


def _is_whole(field: FieldInfo) -> bool:
    kinds = _types_in(field.annotation)
    return int in kinds and str not in kinds


def _whole(value: Any) -> Any:
    is_number = isinstance(value, str) and _EXPONENT.fullmatch(value)
    return int(float(value)) if is_number and float(value).is_integer() else value


def _types_in(annotation: Any) -> set[type]:
    if isinstance(annotation, type):
        return {annotation}
    return {kind for argument in get_args(annotation) for kind in _types_in(argument)}


def execution_only(default: Any, **constraints: Any) -> Any:
    """A key that only controls how a stage is executed: changing it re-runs nothing."""
    return Field(default, json_schema_extra={EXECUTION_ONLY: True}, **constraints)


def added(default: Any, **constraints: Any) -> Any:
    """A key that results depend on, added after 0.1.0: at its default, it is left out of them.

    Results of versions without the key stay up to date. The default can't change.
    """
    return Field(default, json_schema_extra={_ADDED: True}, **constraints)


def is_execution_only(field: FieldInfo) -> bool:
    """Whether changing the key leaves the result unchanged."""
    return _is_marked(field, EXECUTION_ONLY)


def _is_marked(field: FieldInfo, marker: str) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get(marker))


def result_keys(section: Section) -> dict[str, Any]:
    """The keys of a section that its result depends on, as sorted builtins."""
    kept = {
        name
        for name, field in type(section).model_fields.items()
        if not is_execution_only(field)
        and not (_is_marked(field, _ADDED) and getattr(section, name) == field.default)
    }
    return _sorted(section.model_dump(mode="json", include=kept))


def execution_keys(section: Section) -> dict[str, Any]:
    """The keys of a section that only control how it is executed."""
    fields = type(section).model_fields
    kept = {name for name in fields if is_execution_only(fields[name])}
    return _sorted(section.model_dump(mode="json", include=kept))


def _sorted(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Sort the keys at every depth, because their order in the config has no meaning."""
    return {
        key: _sorted(value) if isinstance(value, Mapping) else value
        for key, value in sorted(mapping.items())
    }
