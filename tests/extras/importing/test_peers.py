"""What keys of other trainers are answered with, against what becomes of them in an import."""

import re

from moray.config.peers import HERE
from moray.extras.importing.convert import TOOLS


def place(text: str) -> str:
    return re.split("[:,]", text)[0]


def agree(target: str, names: list[str]) -> bool:
    """Whether a key is one of these, or a section of them, or they are sections of it."""
    return any(
        name.rpartition(".")[2] == target.rpartition(".")[2]
        or f"{name}.".startswith(f"{target}.")
        or f"{target}.".startswith(f"{name}.")
        for name in names
    )


def test_the_tables_of_the_importers_say_the_same() -> None:
    said = [
        (key, [place(name) for name in re.findall("`([^`]+)`", rule.here)])
        for tool in TOOLS
        for rule in tool.RULES
        for key in rule.keys
        if key in HERE
    ]
    other = {key for key, names in said if names and not agree(place(HERE[key]), names)}
    # Its names are no templates, so the importer takes the tokenizer's own.
    assert other == {"template"}
