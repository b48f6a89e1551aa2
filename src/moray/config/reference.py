"""The config's reference for readers and for editors, made from the schema that checks it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from moray.config.schema import Experiment, Section
from moray.config.schema.base import EXECUTION_ONLY, Name

_INTRODUCTION = """\
# Configuration

<!-- Made by `python -m moray.config.reference`; changes here are lost. -->

`config/config.yaml` says what to make: datasets, models, and runs that join one of each.

```yaml
datasets:
  notes: {{source: files, path: "notes/*.txt"}}
models:
  small: {{source: path, path: models/small}}
defaults:
  train: {{learning_rate: 1e-4}}
runs:
  first: {{model: small, dataset: notes}}
  second: {{model: {{run: first}}, dataset: notes, train: {{num_epochs: 2}}}}
```

## How it is read

It is checked before anything starts; each fault costs one line that begins with the key's path:
`runs.first.train.learnig_rate: unknown key; did you mean learning_rate?`

- **Unknown keys** are errors, never ignored.
- **Numbers** may be written `1e-4`, which YAML by itself reads as text.
- **Names** consist of letters, digits, `_` and `-`, and begin with a letter or a digit.
- **Another file on top:** `snakemake --configfile config/other.yaml` reads it over
  `config/config.yaml`, and further files over that one; a target goes before the option, as in
  `snakemake eval --configfile config/other.yaml`. Mappings are merged key by key, at every depth;
  anything else replaces what was there. What has another `source` needs another name.
- **Removing:** `null` takes out a dataset, a model or a run, as in `runs: {{second: null}}`.
- **What re-runs:** a stage runs again when a key that its result depends on has changed. Keys
  marked † say only how a stage is executed, and changing one re-runs nothing. They are:
  {execution_only}.

`config/schema.json` tells editors the same. Begin a file in `config/` with
`# yaml-language-server: $schema=schema.json` to have keys completed and checked while you write.
"""

_NAME = TypeAdapter(Name).json_schema()
_WORDS = {"boolean": "true or false", "integer": "whole number", "null": "`null`", "string": "text"}

_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


class _AnyFile(GenerateJsonSchema):
    """The schema of any one file: others may hold the rest, so no key is required."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return False

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        made = super().default_schema(schema)
        # A section's default would only repeat the defaults of its keys, wrongly so in a run.
        if isinstance(schema.get("default"), Section):
            del made["default"]
        return made


def json_schema() -> str:
    """The JSON Schema of a config file, overlays included."""
    whole = Experiment.model_json_schema(schema_generator=_AnyFile)
    for section in ("datasets", "models", "runs"):
        names = whole["properties"][section]
        names["additionalProperties"] = False
        for pattern, entry in names["patternProperties"].items():
            # Without required keys, an entry may fit several sources; `null` removes it.
            branches = entry.get("oneOf", [entry])
            names["patternProperties"][pattern] = {"anyOf": [*branches, {"type": "null"}]}
    return json.dumps({"$schema": GenerateJsonSchema.schema_dialect, **whole}, indent=2) + "\n"


def markdown() -> str:
    """The reference page."""
    schema = Experiment.model_json_schema()
    parts = _resolved(schema["properties"], schema["$defs"])
    meaning = {name: field.description for name, field in Experiment.model_fields.items()}
    fields = parts["defaults"]["model"]["properties"]
    sections = {name: _models_of(field)[0] for name, field in fields.items()}
    lines = [_INTRODUCTION.format(execution_only="; ".join(_execution_only(sections)))]
    for name in ("datasets", "models"):
        lines.append(f"## `{name}`\n\n{meaning[name]}\n")
        (entry,) = parts[name]["patternProperties"].values()
        for branch in entry["oneOf"]:
            source = branch["model"]["properties"]["source"]["const"]
            lines += _section(f"### `source: {source}`", branch["model"])
    lines.append(f"## `defaults`\n\n{meaning['defaults']}\n")
    for name, model in sections.items():
        lines += _section(f"### `{name}`", model)
    (entry,) = parts["runs"]["patternProperties"].values()
    run = dict(entry["model"])
    run["properties"] = {k: v for k, v in run["properties"].items() if k not in sections}
    links = ", ".join(f"[`{name}`](#{name})" for name in sections)
    run["description"] += f"\n\nBesides the keys below, a run has these sections: {links}."
    lines += _section("## `runs`", run)
    return "\n".join(lines)


def _resolved(node: Any, definitions: Mapping[str, Any]) -> Any:
    """With each reference to a model replaced by the model itself, under `model`."""
    if isinstance(node, list):
        return [_resolved(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _resolved(value, definitions) for key, value in node.items() if key != "$ref"}
    if "$ref" in node:
        found["model"] = _resolved(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return found


def _execution_only(sections: Mapping[str, Any]) -> Iterator[str]:
    for name, model in sections.items():
        fields = model["properties"]
        if marked := [f"`{key}`" for key in fields if EXECUTION_ONLY in fields[key]]:
            yield f"{'all' if len(marked) == len(fields) else ', '.join(marked)} of `{name}`"


def _section(heading: str, model: Mapping[str, Any]) -> Iterator[str]:
    """Heading, meaning and table of a model, then those of the models in its keys."""
    yield f"{heading}\n\n{model['description']}\n"
    # What an entry must have first; else a model's inherited keys would come before its own.
    fields = dict(sorted(model["properties"].items(), key=lambda item: "default" in item[1]))
    yield "| key | value | default | meaning |\n|---|---|---|---|"
    for key, field in fields.items():
        mark = " †" if EXECUTION_ONLY in field else ""
        default = f"`{_yaml(field['default'])}`" if "default" in field else "required"
        cells = (f"`{key}`{mark}", _value(field), default, field["description"])
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
    yield ""
    if any(EXECUTION_ONLY in field for field in fields.values()):
        yield "† Changing it re-runs nothing.\n"
    for key, field in fields.items():
        for inner in _models_of(field):
            form = " as a mapping" if "anyOf" in field else ""
            yield from _section(f"{heading.split()[0]}# `{key}`{form}", inner)


def _models_of(field: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The models that a key takes."""
    return [branch["model"] for branch in field.get("anyOf", [field]) if "model" in branch]


def _value(field: Mapping[str, Any]) -> str:
    """What a key takes, in words."""
    if "anyOf" in field:
        branches = [_value(branch) for branch in field["anyOf"]]
        return (", or " if "," in "".join(branches) else " or ").join(branches)
    if "model" in field:
        return f"mapping of {', '.join(f'`{key}`' for key in field['model']['properties'])}"
    if "const" in field or "enum" in field:
        *words, last = [f"`{word}`" for word in field.get("enum") or [field["const"]]]
        return f"{', '.join(words)} or {last}" if words else last
    if field["type"] == "array":
        return f"list of {_value(field['items'])}"
    if field["type"] == "object":
        return f"mapping of names to: {_value(field['additionalProperties'])}"
    if field.get("pattern") == _NAME["pattern"]:
        return "name"
    words = [_WORDS.get(field["type"], field["type"])]
    words += [f"{_BOUNDS[bound]} {field[bound]:g}" for bound in _BOUNDS if bound in field]
    if "pattern" in field:
        words.append(f"of the form `{field['pattern']}`")
    return ", ".join(words)


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    return value if isinstance(value, str) else json.dumps(value)


def main() -> None:
    """Write both files into the project in the working directory."""
    Path("docs/configuration.md").write_text(markdown())
    Path("config/schema.json").write_text(json_schema())


if __name__ == "__main__":
    main()
