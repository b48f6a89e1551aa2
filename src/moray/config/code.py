"""Which source files a stage's result depends on, found without importing them."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# All that these can do to a result is in the stage's `cfg`, or is a message to the user.
_NO_EFFECT = ("moray.config", "moray.errors", "moray.console")


def code_digest(script: Path, source: Path) -> str:
    """Digest of the code that a stage's result depends on, hexadecimal, 16 digits.

    By content alone: files that are copied or touched don't count as changed, and files that
    are replaced by older ones do.
    """
    digest = hashlib.sha256()
    for path in code_of(script, source):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def code_of(script: Path, source: Path) -> list[Path]:
    """The script and all modules of the package that it imports, directly or not.

    Args:
        script: the file that a rule runs.
        source: the folder that holds the package `moray`.

    Returns:
        The files, sorted.
    """
    found, waiting = set(), [script]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path, source)
    return sorted(found)


@cache
def _imported(path: Path, source: Path) -> list[Path]:
    modules = _module_names(ast.parse(path.read_bytes()))
    return [file for module in modules for file in _files(module, source)]


def _module_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(module: str, source: Path) -> Iterator[Path]:
    """The file of a module and the `__init__.py` of each package around it."""
    parts = module.split(".")
    if parts[0] != "moray" or ".".join(parts[:2]) in _NO_EFFECT:
        return
    for depth in range(1, len(parts) + 1):
        stem = source.joinpath(*parts[:depth])
        for path in (stem / "__init__.py", stem.with_suffix(".py")):
            if path.is_file():
                yield path
