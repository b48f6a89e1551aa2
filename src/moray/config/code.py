"""Which source files a stage's result depends on, found without importing them."""

import ast
import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

# The schema only checks the config, and stages get all of its values in `cfg`; the others pass on
# what stages say and record.
_NO_EFFECT = ("moray.config.schema", "moray.errors", "moray.console", "moray.tracking")

_HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


_TEMPLATES = "templates"

# What imports a module by a name from the config.
_BY_NAME = {
    "moray/corpus/sources/opened.py": "moray.corpus.sources.{}",
    "moray/stages/evaluate.py": "moray.evaluate.{}",
    "moray/stages/tokenize.py": "moray.tasks.{}.tokens",
    "moray/tasks/of_store.py": "moray.tasks.{}.task",
    "moray/train/engine/strategies/__init__.py": "moray.train.engine.strategies.{}",
}


def code_digest(script: Path, source: Path, *names: str) -> str:
    """Digest of the code that a stage's result depends on, hexadecimal, 16 digits.

    Comments, docstrings, formatting, and the files' locations and times don't change it.

    Args:
        script: the file that a rule runs.
        source: the folder that holds the package `moray`.
        names: of modules that the stage imports by a name from the config, such as its task.
    """
    digest = hashlib.sha256()
    # The script last, wherever it is.
    for path in sorted(code_of(script, source, *names), key=lambda path: (path == script, path)):
        content = path.read_bytes()
        digest.update(_meaning(content).encode() if path.suffix == ".py" else content)
    return digest.hexdigest()[:16]


def code_of(script: Path, source: Path, *names: str) -> list[Path]:
    """The script and all modules of the package that it imports, directly or not.

    Of packages with a folder of templates, these too.

    Args:
        script: the file that a rule runs.
        source: the folder that holds the package `moray`.
        names: of modules that are imported by a name from the config.

    Returns:
        The files, sorted.
    """
    found, waiting = set(), [script]
    by_name = {source / file: module for file, module in _BY_NAME.items()}
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path.read_bytes(), source)
            if path in by_name:
                modules = map(by_name[path].format, names)
                waiting += [file for module in modules for file in _files(module, source)]
    packages = [path.parent for path in found if path.name == "__init__.py"]
    templates = (file for package in packages for file in (package / _TEMPLATES).glob("*"))
    return sorted({*found, *templates})


@cache
def _imported(content: bytes, source: Path) -> list[Path]:
    modules = _module_names(_parsed(content))
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
    if parts[0] != "moray" or f"{module}.".startswith(tuple(f"{name}." for name in _NO_EFFECT)):
        return
    for depth in range(1, len(parts) + 1):
        stem = source.joinpath(*parts[:depth])
        for path in (stem / "__init__.py", stem.with_suffix(".py")):
            if path.is_file():
                yield path


@cache
def _parsed(content: bytes) -> ast.Module:
    return ast.parse(content)


@cache
def _meaning(content: bytes) -> str:
    words: list[str] = []
    _spell(_parsed(content), words.append)
    return "\n".join(words)


def _spell(value: Any, put: Callable[[str], None]) -> None:
    """Spell out a syntax tree without docstrings, the same for every version of Python.

    `ast.dump` isn't: versions add fields, which are empty in code that doesn't use them.
    """
    if isinstance(value, ast.AST):
        put(type(value).__name__)
        for name in value._fields:
            field = getattr(value, name)
            # Whether a name is read or written follows from its position.
            if name == "ctx" or field is None or field == []:
                continue
            put(name)
            is_body = name == "body" and isinstance(value, _HAVE_DOCSTRINGS)
            _spell(field[1:] if is_body and _is_text(field[0]) else field, put)
        put(")")
    elif isinstance(value, list):
        for entry in value:
            _spell(entry, put)
        put("]")
    else:
        put(repr(value))


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
