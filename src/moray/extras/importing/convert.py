"""A config of axolotl or LLaMA-Factory as an overlay of this tool's."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from moray.config.load import load_experiment, read_yaml
from moray.errors import ConfigError, UserError
from moray.extras.importing import axolotl, llama_factory
from moray.extras.importing.table import REVISION, Draft, apply, flatten, markdown
from moray.hub import newest_commit

TOOLS = (axolotl, llama_factory)
_PAGE = Path("docs/import.md")


def convert(file: Path, gpus: int = 1, pins: bool = False) -> str:
    """The overlay, in YAML, with comments on what has no effect or another one.

    Args:
        file: the other tool's config.
        gpus: number of GPUs that it was for, by which batches are multiplied.
        pins: whether to ask the Hub for the newest commits of repositories, which are pinned here.

    Raises:
        UserError: if it isn't one of these tools' configs, or has keys that have no counterpart;
            all of them are named.
    """
    config = read_yaml(file, "give the path of a config")
    tool = next((tool for tool in TOOLS if tool.MARK in config), None)
    if tool is None:
        marks = " and ".join(f"{tool.NAME}'s have {tool.MARK}" for tool in TOOLS)
        raise UserError(str(file), f"the tool isn't known: {marks}", "add the key")
    draft = Draft(_name(file), flatten(config, tool.NESTED), gpus)
    apply(tool.RULES, draft)
    refusals = draft.refused or _faults(draft)
    if refusals:
        listing = ", ".join(f"{key} ({why})" for key, why in sorted(refusals.items()))
        remedy = f"remove or change these keys, or stay with {tool.NAME}"
        raise UserError(str(file), f"moray doesn't do this: {listing}", remedy)
    if pins:
        _pin(draft)
    return _overlay_text(draft, file.name, tool.NAME)


def _name(file: Path) -> str:
    """The run's name, after the file, so that imported runs can be beside each other."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", file.stem).strip("-")[:80]
    return "imported" if name in ("", "base", "tuned") else name


def _pin(draft: Draft) -> None:
    """Fill in commits, until the Hub doesn't tell one: waiting for it once is enough."""
    datasets = [("dataset", section) for section in draft.datasets.values()]
    for kind, section in [("model", draft.model), *datasets]:
        if section.get("revision") == REVISION:
            commit = newest_commit(section["repo_id"], kind)
            if commit is None:
                return
            section["revision"] = commit


def _faults(draft: Draft) -> dict[str, str]:
    """The faults of the overlay, by the other tool's keys that it comes from."""
    overlay = yaml.dump(_sections(draft), Dumper=_Dumper).replace(REVISION, "a" * 40)
    try:
        load_experiment(yaml.safe_load(overlay))
    except ConfigError as error:
        faults: dict[str, str] = {}
        for problem in error.problems:
            faults.setdefault(_origin(draft, problem.path), f"{problem.path}: {problem.problem}")
        return faults
    return {}


def _origin(draft: Draft, path: str) -> str:
    """The keys that a path of the overlay comes from."""
    inside = path.removeprefix(f"runs.{draft.name}.")
    if path.endswith(".validation_share"):
        inside = "validation_share"
    sections = (inside.rsplit(".", count)[0] for count in range(inside.count(".") + 1))
    origin = next((keys for each in sections if (keys := draft.origin.get(each))), ())
    return ", ".join(origin) or path


def _sections(draft: Draft) -> dict[str, Any]:
    return {
        "datasets": draft.datasets,
        "models": {f"{draft.name}-base": draft.model},
        "runs": {
            "base": None,
            "tuned": None,
            draft.name: {"model": f"{draft.name}-base", **draft.run},
        },
    }


def _overlay_text(draft: Draft, file: str, tool: str) -> str:
    plural = "GPU" if draft.gpus == 1 else "GPUs"
    lines = [
        f"# From {tool}'s {file}, by `moray import`; batches are those of {draft.gpus} {plural} "
        "(`--num-gpus`).",
        "# 5 % of the rows are held out for the evaluation, besides those for validation.",
    ]
    sections = _sections(draft)
    body = yaml.dump(sections, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    if "repo_id" in body:
        lines += _comment(
            "To train on files of yours, replace `source`, `repo_id`, `revision` and `split` of a "
            "dataset by `source: files` and `path`, and those of the model by `source: path` and "
            "`path`.",
            "# ",
        )
    if REVISION in body:
        lines.append(f"# Fill in: `revision`, the hash of the repository's commit ({REVISION}).")
    for title, notes in (("Different here:", draft.different), ("No effect:", draft.same)):
        if notes:
            lines.append(f"# {title}")
            lines += [line for note in _notes_by_text(notes) for line in _comment(note)]
    if draft.off:
        lines += _comment(f"Off there: {', '.join(sorted(draft.off))}.", "# ")
    return "\n".join(lines) + f"\n\n{body}"


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and null as it is read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _notes_by_text(notes: Mapping[str, str]) -> Iterator[str]:
    by_text: dict[str, list[str]] = {}
    for key, text in notes.items():
        by_text.setdefault(text, []).append(key)
    for text, keys in by_text.items():
        yield f"{', '.join(keys)}: {text}"


def _comment(text: str, first: str = "# - ") -> list[str]:
    return textwrap.wrap(
        text, 100, initial_indent=first, subsequent_indent="#   ", break_on_hyphens=False
    )


def page(text: str) -> str:
    """The documentation's page, with the tables of both tools between their marks."""
    for tool in TOOLS:
        command = "python -m moray.extras.importing.convert; edits here are lost"
        begin, end = f"<!-- begin: {tool.NAME}, by {command} -->\n", "<!-- end -->"
        before, mark, rest = text.partition(begin)
        tables = [markdown(name, rules) for name, rules in tool.TABLES.items()]
        table = "\n\n".join("\n".join(lines) for lines in tables)
        text = f"{before}{mark}{table}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Write the tables to the project in the working directory."""
    _PAGE.write_text(page(_PAGE.read_text()))


if __name__ == "__main__":
    main()
