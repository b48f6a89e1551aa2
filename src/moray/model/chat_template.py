"""Chat templates of folders, and their variables, such as `enable_thinking`."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from moray.errors import UserError


def chat_templates(folder: Path) -> list[str]:
    """The texts of the chat templates that the tokenizer of a Hugging Face folder has.

    Raises:
        UserError: if its config is damaged.
    """
    files = (folder / "chat_template.jinja", *folder.glob("additional_chat_templates/*.jinja"))
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    config = folder / "tokenizer_config.json"
    try:
        entry = json.loads(config.read_text()).get("chat_template") if config.is_file() else None
    except (ValueError, AttributeError) as error:
        raise UserError(
            str(config), f"can't be read as a tokenizer's config ({error})", "copy the file again"
        ) from error
    # Several are a list of names and templates.
    entries = entry if isinstance(entry, list) else [{"template": entry}] if entry else []
    return [*texts, *(str(one["template"]) for one in entries)]


def unused_variables(variables: Iterable[str], template: str) -> list[str]:
    """The variables that a template doesn't use."""
    return [name for name in variables if not re.search(rf"\b{name}\b", template)]


def unused_variable_error(section: str, names: Sequence[str]) -> UserError:
    """The fault of variables that a template doesn't use, in a `data` section."""
    return UserError(
        f"{section}.template_variables",
        f"got {' and '.join(names)}, which the chat template doesn't use",
        "check the spelling, or remove it",
    )


def with_defaults(
    template: str | dict[str, str], variables: Mapping[str, Any]
) -> str | dict[str, str]:
    """A template, or several by name, with values for variables that a caller doesn't set."""
    if isinstance(template, dict):
        return {name: _with_defaults(text, variables) for name, text in template.items()}
    return _with_defaults(template, variables)


def _with_defaults(template: str, variables: Mapping[str, Any]) -> str:
    # Values are text, numbers or true and false, which JSON and Jinja write alike.
    values = ((name, json.dumps(value, ensure_ascii=False)) for name, value in variables.items())
    lines = "".join(
        f"{{%- set {name} = {name} if {name} is defined else {value} %}}\n"
        for name, value in sorted(values)
    )
    # A run has those of the run that it starts from, whose template has them already.
    return template if template.startswith(lines) else lines + template
