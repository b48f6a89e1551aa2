"""Capabilities that most runs do without: each is a folder of `moray.extras`, and can be deleted.

The core names them here alone. It imports a module of theirs by `part`, where one is asked for.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

_FOLDERS = Path(__file__).parents[1] / "extras"

# The folder of each command of `moray`; its module `command` has a function of that name.
COMMANDS = {"import": "importing"}


def is_there(folder: str) -> bool:
    """Whether the code of an extra is in this package."""
    return (_FOLDERS / folder / "__init__.py").is_file()


def part(folder: str, module: str) -> ModuleType:
    """A module of an extra."""
    return import_module(f"moray.extras.{folder}.{module}")
