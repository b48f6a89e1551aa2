"""Faults of a config as a file, which nobody sees once it has been read."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from moray.config.load import check_encoding, load_experiment, merge, read_yaml
from moray.config.schema.experiment import Experiment
from moray.config.schema.report import Report
from moray.config.validation import describe
from moray.errors import ConfigError, UserError

_CONFIG = Path("config/config.yaml")
_OPTION = "--configfile"
# LibYAML takes a tenth of the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NAMES = {"tag:yaml.org,2002:bool": "true or false", "tag:yaml.org,2002:null": "nothing"}
_OTHER_BASE = re.compile(r"[+-]?0[0-7_]+|[+-]?\d[\d_]*(:\d+)+(\.\d*)?")
# The key by which Snakemake evaluates the rest of a file.
_EVALUATED = "__use_yte__"


class _WithReport(BaseModel):
    report: Report = Report()


def read_config(overlays: Sequence[Path]) -> Experiment:
    """The experiment of this project, with overlays merged over its config in their order.

    Raises:
        ConfigError: with every fault of the config.
        UserError: if a file is missing or isn't YAML.
    """
    return load_experiment(_merged((_CONFIG, *overlays)))


def read_report(overlays: Sequence[Path]) -> Report:
    """The section `report` of the config of this project, if there is one, and of overlays.

    Nothing else of them is checked.

    Raises:
        ConfigError: with every fault of the section.
        UserError: if an overlay is missing, or a file isn't YAML.
    """
    config = _merged((*([_CONFIG] if _CONFIG.is_file() else []), *overlays))
    try:
        return _WithReport.model_validate(config).report
    except ValidationError as error:
        raise ConfigError(describe(error, config)) from None


def _merged(files: Sequence[Path]) -> Any:
    config: Any = {}
    for file in files:
        content = read_yaml(file, "go to the project's folder")
        check_config_file(file)
        config = merge(config, content)
    return config


def check_option(arguments: Sequence[str]) -> None:
    """Refuse `--configfile` that is given more than once, of which Snakemake keeps the last.

    Args:
        arguments: of the command line of Snakemake.
    """
    options = [position for position, word in enumerate(arguments) if _is_option(word)]
    if len(options) > 1:
        files = [file for position in options for file in _values(arguments[position:])]
        raise UserError(
            _OPTION,
            f"is given {len(options)} times, and Snakemake keeps only the last",
            f"write {_OPTION} {' '.join(files)}",
        )


def _is_option(word: str) -> bool:
    # Python's argparse also takes a shortened option.
    name = word.partition("=")[0]
    return name.startswith("--configf") and f"{_OPTION}s".startswith(name)


def _values(arguments: Sequence[str]) -> Iterator[str]:
    option, *words = arguments
    if "=" in option:
        yield option.partition("=")[2]
        return
    for word in words:
        if word.startswith("-"):
            return
        yield word


def check_config_file(file: Path) -> None:
    """Refuse what Snakemake would read otherwise than it is meant, or not as a config.

    Raises:
        UserError: with the line.
    """
    check_encoding(file)
    text = file.read_text(encoding="utf-8")
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        if _is_json(text):
            return
        place = f"{file}, line {error.problem_mark.line + 1}" if error.problem_mark else str(file)
        raise UserError(place, f"isn't YAML: {error.problem}", "correct it") from error
    _check(root, file, set())


def _is_json(text: str) -> bool:
    """Whether it is JSON; some of it, such as tabs, isn't YAML."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _check(node: yaml.Node | None, file: Path, visited: set[int]) -> None:
    if isinstance(node, yaml.ScalarNode):
        _check_number(node, file)
    if not isinstance(node, yaml.CollectionNode) or id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, _ in node.value:
            _check_key(key, file, lines)
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            _check(part, file, visited)


def _check_number(node: yaml.ScalarNode, file: Path) -> None:
    """Refuse numbers to a base of 8 or 60, which are seldom meant."""
    if _OTHER_BASE.fullmatch(node.value) and node.tag.endswith((":int", ":float")):
        raise UserError(
            f"{file}, line {node.start_mark.line + 1}",
            f"YAML reads {node.value} as {yaml.safe_load(node.value):g}",
            "write the number without a 0 or colons, or put quotes around it",
        )


def _check_key(key: yaml.Node, file: Path, lines: dict[str, int]) -> None:
    """Check a key of a mapping against those before it, whose lines are given."""
    line = key.start_mark.line + 1
    place = f"{file}, line {line}"
    if key.tag in _NAMES:
        problem = f"YAML reads the key {key.value} as {_NAMES[key.tag]}"
        raise UserError(place, problem, f"put quotes around {key.value}")
    if key.value == _EVALUATED:
        raise UserError(place, f"{key.value} runs code that is in the config", "write the values")
    if key.value == "<<" or not isinstance(key, yaml.ScalarNode):
        return
    if key.value in lines:
        first = lines[key.value]
        raise UserError(
            place,
            f"the key {key.value} is in line {first} already, and only the last one would count",
            "remove one of them",
        )
    lines[key.value] = line
