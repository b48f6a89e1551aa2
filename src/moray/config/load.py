"""Turn a user's config into a checked `Experiment`, or report each fault in one line."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from moray.config import extras
from moray.config.grid import Expansion, expand, with_value
from moray.config.inputs import CHECK_PATH
from moray.config.references import check_references
from moray.config.schema.experiment import SMOKE_TEST_RUN, Experiment, Sweep
from moray.config.sheet import Sheet, read_sheet
from moray.config.validation import describe
from moray.errors import ConfigError, UserError

_TEMPLATE_FILE = re.compile(r"[^{}\n]+\.(jinja2?|j2)")
_NAMED = ("datasets", "models", "runs")
# The short keys of `config/smoke-test.yaml`, for `snakemake --config`, and where they belong.
_SHORT_KEYS = {
    "address": "defaults.ray.address",
    "size_gb": "datasets.made-up.size_gb",
    "workers": "defaults.ray.num_workers",
}


def check_encoding(file: Path) -> None:
    """Make sure that a file is UTF-8, which is how Snakemake reads a config.

    Raises:
        UserError: with the number of the first line that isn't.
    """
    content = file.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{file}, line {line}",
            f"byte 0x{content[error.start]:02x} is not valid UTF-8",
            "save the file as UTF-8",
        ) from error


def read_yaml(file: Path, if_missing: str) -> Mapping[str, Any]:
    """The mapping in a YAML file.

    Args:
        if_missing: what to do if there is no such file.

    Raises:
        UserError: if there is none, or it is no such mapping.
    """
    if not file.is_file():
        raise UserError(str(file), "there is no such file", if_missing)
    check_encoding(file)
    try:
        content = yaml.safe_load(file.read_bytes())
    except RecursionError as error:
        raise UserError(str(file), "has too many lists in lists", "correct it") from error
    # A ValueError of a date that no calendar has.
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(str(file), f"isn't YAML ({error})", "correct it") from error
    if not isinstance(content, Mapping):
        raise UserError(str(file), "isn't a mapping", "correct it")
    return content


def resolve_short_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a smoke test with the short keys that are given in their places.

    Any other config is returned as it is, so that such a key in it is reported as unknown.
    """
    whole = dict(config)
    if SMOKE_TEST_RUN not in (whole.get("runs") or {}):
        return whole
    for key in _SHORT_KEYS.keys() & whole.keys():
        value = whole.pop(key)
        whole = with_value(whole, _SHORT_KEYS[key], value)
    return whole


def load_experiment(config: Mapping[str, Any]) -> Experiment:
    """Expand sweeps, fill `defaults` into each run and check the config, which has been merged.

    An entry of `datasets`, `models` or `runs` that is None counts as absent, so that an overlay can
    remove it.

    Raises:
        ConfigError: with every fault, one line each.
    """
    try:
        sheet = read_sheet(config["runs_from"]) if config.get("runs_from") else Sheet()
    except UserError as error:
        raise ConfigError([error]) from error
    whole = merge({"runs": sheet.runs}, config) if sheet.runs else config
    sections = {key: _without_removed(key, value) for key, value in whole.items()}
    runs = sections.get("runs")
    expansion = Expansion()
    try:
        if isinstance(runs, Mapping):
            expansion = expand(runs)
            sections["runs"] = expansion.runs
        return _checked(sections, expansion.sweeps)
    except ConfigError as error:
        faults = sheet.as_written(expansion.as_written(error.problems))
        raise ConfigError(faults) from None


def _checked(sections: dict[str, Any], sweeps: dict[str, Sweep]) -> Experiment:
    """The experiment of a config without sweeps; raises a ConfigError."""
    try:
        sections = _with_template_files(sections)
    except UserError as error:
        raise ConfigError([error]) from error
    try:
        experiment = Experiment.model_validate(_with_defaults(sections)).with_sweeps(sweeps)
    except ValidationError as error:
        raise ConfigError(describe(error, sections)) from None
    if problems := check_references(experiment) or _searches(experiment):
        raise ConfigError(problems)
    return experiment


def _searches(experiment: Experiment) -> list[UserError]:
    """The faults of searches, whose runs are sound."""
    folder = extras.STAGES["search"]
    # Otherwise the workflow refuses them anyway.
    if not extras.is_there(folder) or not any(run.search for run in experiment.runs.values()):
        return []
    faults: list[UserError] = extras.part(folder, "space").check_searches(experiment)
    return faults


def _without_removed(key: str, value: Any) -> Any:
    if key in _NAMED and isinstance(value, Mapping):
        return {name: entry for name, entry in value.items() if entry is not None}
    return value


def _with_template_files(sections: dict[str, Any]) -> dict[str, Any]:
    defaults, runs = sections.get("defaults"), sections.get("runs")
    texts: dict[str, Any] = (
        {"defaults": _with_template_file("defaults", defaults)} if defaults else {}
    )
    if isinstance(runs, Mapping):
        own = ((name, _with_template_file(f"runs.{name}", run)) for name, run in runs.items())
        texts["runs"] = dict(own)
    return {**sections, **texts}


def _with_template_file(place: str, section: Any) -> Any:
    """A run, or the defaults, with the text of a chat template that it has the path of.

    Raises:
        UserError: if there is no such file, or it isn't UTF-8.
    """
    data = section.get("data") if isinstance(section, Mapping) else None
    if not isinstance(data, Mapping):
        return section
    value = data.get("chat_template")
    if not isinstance(value, str) or not _TEMPLATE_FILE.fullmatch(value):
        return section
    file = Path(value).expanduser()
    if not file.is_file():
        key = f"{place}.data.chat_template"
        raise UserError(key, f"there is no file {value}", CHECK_PATH)
    check_encoding(file)
    return {**section, "data": {**data, "chat_template": file.read_text("utf-8")}}


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    defaults, runs = config.get("defaults", {}), config.get("runs")
    if not isinstance(defaults, Mapping) or not isinstance(runs, Mapping):
        return config
    return {**config, "runs": {name: merge(defaults, run) for name, run in runs.items()}}


def merge(base: Any, override: Any) -> Any:
    """Override a mapping key by key, at every depth."""
    if not isinstance(base, Mapping) or not isinstance(override, Mapping):
        return override
    whole = dict(base)
    for key, value in override.items():
        whole[key] = merge(base[key], value) if key in base else value
    return whole
