"""Edits of the package in a clone, which run again the stages that they may affect.

What a release changes is said by the versions of results (`moray.config.versions`). An edit of
one's own has no such version, so a module counts if it differs from `code.lock`, the digests of the
modules as they were released. `python -m moray.provenance.edits` writes that file.
"""

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

PACKAGE = Path(__file__).parents[1]
LOCK = PACKAGE / "code.lock"
# Rooms and modules that only say, start, keep or watch something. Keys of the config, whose schema
# is among them, are params of the rules, and so are names in its tables.
_WITHOUT_EFFECT = {
    *("background", "cli", "console", "errors", "hub", "lines", "machine", "project"),
    *("proofs", "provenance", "storage", "tracking", "workers"),
    *(f"config/{name}" for name in ("extras", "layout", "schema", "tasks")),
    *(f"extras/{name}" for name in ("chat", "doctor", "importing", "memory_plan", "object_store")),
    *(f"tasks/{name}/proofs" for name in ("classification", "distillation", "images")),
    *(f"tasks/{name}/proofs" for name in ("kto", "language", "preference", "reward")),
    "tasks/token_classification/proofs",
    *(f"train/{name}" for name in ("checks", "failures", "supervision")),
}
# It sums figures over workers, in a room without effect.
_WITH_EFFECT = "workers/collectives"
# Endings of modules and templates, but not of files that editors leave.
_SUFFIXES = {".css", ".html", ".js", ".py"}
# Functions that import a module of a folder by its name.
_BY_NAME = {"module_of": "moray.tasks.{}", "extras.part": "moray.extras.{}"}
# Lines of the SHA-256 of a file and the digest of what it means. Parsing all files takes a quarter
# of a second, which each start of the workflow would cost. Named by the version of `_spell`.
_CACHE = Path(".snakemake/moray-code-3")


def edits_of(stage: str, names: Iterable[str] = ()) -> str:
    """Digest of the edits that may affect a stage's result; empty if there are none.

    A module may affect a stage that imports it, directly or not. Comments, docstrings, formatting
    and messages don't count, nor do modules without effect on a result.

    Args:
        stage: name of the stage.
        names: those by which it imports modules: of its task or metrics; and modules by their
            whole names, such as its source.

    Returns:
        8 hexadecimal digits, or nothing.
    """
    edits = _edited_modules()
    if not edits:
        return ""
    modules = _closure(stage, tuple(names))
    digests = {path: digest for path, digest in edits.items() if _is_used(path, modules)}
    lines = "".join(f"{path} {digest}\n" for path, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:8] if digests else ""


def code_digest() -> str:
    """Digest of the whole package; comments, docstrings and messages don't count.

    What a process leaves behind half done is for the same code only: it alone knows its form.

    Returns:
        8 hexadecimal digits.
    """
    lines = "".join(f"{path} {digest}\n" for path, digest in _present().items())
    return hashlib.sha256(lines.encode()).hexdigest()[:8]


def _is_used(path: str, modules: frozenset[str]) -> bool:
    """Whether a file is one of some modules, or a template of theirs."""
    file = PurePosixPath(path)
    if file.suffix == ".py":
        return path in modules
    # Beside the module of its name, or in a folder beside those that share it.
    beside = {PurePosixPath(module).parent for module in modules}
    shared = file.parent.name == "templates" and file.parent.parent in beside
    return shared or str(file.with_suffix(".py")) in modules


def write_lock() -> None:
    """Record the package's modules as they are as released."""
    # Not those of another version of `_spell`.
    _known_digests().clear()
    LOCK.write_text("".join(f"{path} {digest}\n" for path, digest in _present().items()))


def meaning(source: bytes) -> str:
    """Digest of a module's syntax tree, without docstrings and the messages that a user reads."""
    words: list[str] = []
    _spell(ast.parse(source), words.append)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


@cache
def _edited_modules() -> dict[str, str]:
    """Modules that differ from those released, or that were added or removed, with digests."""
    present = _present()
    release = dict(line.split(" ") for line in LOCK.read_text().splitlines())
    return {
        path: present.get(path, "removed")
        for path in sorted({*present, *release})
        if present.get(path) != release.get(path)
    }


def _present() -> dict[str, str]:
    files = [path for path in PACKAGE.rglob("*") if _counts(path)]
    return {path.relative_to(PACKAGE).as_posix(): _digest(path) for path in sorted(files)}


def _counts(path: Path) -> bool:
    # A wheel has the workflow in the package.
    inner = path.relative_to(PACKAGE).parts
    is_own = path.suffix in _SUFFIXES and not path.name.startswith(".") and path.is_file()
    return is_own and inner[0] != "workflow"


@cache
def _closure(stage: str, names: tuple[str, ...]) -> frozenset[str]:
    """The modules that a stage imports, directly or not, in rooms that may affect its result."""
    paths: set[str] = set()
    waiting = [*_modules_of(stage), *map(_path, names)]
    while waiting:
        path = waiting.pop()
        if path not in paths and (PACKAGE / f"{path}.py").is_file():
            paths.add(path)
            for module in _imported_modules(path, names):
                if not _is_inert(module, stage):
                    waiting += [module, f"{module}/__init__"]
    return frozenset(f"{path}.py" for path in paths)


def _modules_of(stage: str) -> list[str]:
    """The module of a stage: of the core, of a task, or of an extra."""
    extras = PACKAGE.glob("extras/*/stage.py")
    paths = [
        *PACKAGE.glob(f"stages/{stage}.py"),
        *(path for path in extras if f"\ndef {stage}(" in path.read_text()),
    ] or [*PACKAGE.glob(f"tasks/*/{stage}.py")]
    return [path.relative_to(PACKAGE).with_suffix("").as_posix() for path in paths]


def _is_inert(module: str, stage: str) -> bool:
    rooms = _WITHOUT_EFFECT - ({"tracking"} if stage == "track" else set())
    if module == _WITH_EFFECT:
        return False
    return any(module == room or module.startswith(f"{room}/") for room in rooms)


def _imported_modules(path: str, names: tuple[str, ...]) -> Iterator[str]:
    """The modules of the package that a module imports, as paths without ending."""
    for module in _imports(path):
        if "{}" not in module:
            yield module
        else:
            own = [module.replace("{}", name) for name in names]
            own = [file for file in own if (PACKAGE / f"{file}.py").is_file()]
            every = PACKAGE.glob(f"{module.replace('{}', '*')}.py")
            # If none of the names has this module, it may be that of any.
            yield from own or (str(file.relative_to(PACKAGE).with_suffix("")) for file in every)


@cache
def _imports(path: str) -> tuple[str, ...]:
    """The imports of a module; `tasks/{}/export` is imported by a name."""
    names: list[str] = []
    for node in ast.walk(ast.parse((PACKAGE / f"{path}.py").read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            names.append("".join(map(str, parts)))
        elif isinstance(node, ast.Call) and (folder := _BY_NAME.get(ast.unparse(node.func))):
            constants = [part.value for part in node.args if isinstance(part, ast.Constant)]
            names += [f"{folder}.{name}" for name in constants if isinstance(name, str)]
    own = (name for name in dict.fromkeys(names) if name.startswith("moray."))
    # If two parts of a name vary, the calls above say more.
    return tuple(_path(name) for name in own if name.count("{}") < 2)


def _path(module: str) -> str:
    return module.removeprefix("moray.").replace(".", "/")


def _digest(path: Path) -> str:
    content = path.read_bytes()
    whole = hashlib.sha256(content).hexdigest()
    if path.suffix != ".py":
        return whole[:16]
    digests = _known_digests()
    if whole not in digests:
        digests[whole] = _meaning_or_bytes(content, whole)[:16]
        if _CACHE.parent.is_dir():
            with _CACHE.open("a") as file:
                file.write(f"{whole} {digests[whole]}\n")
    return digests[whole]


def _meaning_or_bytes(content: bytes, whole: str) -> str:
    try:
        return meaning(content)
    except (SyntaxError, ValueError):
        # Half written, say. It stops the workflow where it is imported, and nowhere else.
        return whole


@cache
def _known_digests() -> dict[str, str]:
    lines = _CACHE.read_text().splitlines() if _CACHE.is_file() else []
    # Another process may be writing the last line.
    return {line[:64]: line[65:] for line in lines if len(line) == 81}


_HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _spell(value: Any, put: Callable[[str], None]) -> None:
    """Spell out a syntax tree.

    `ast.dump` isn't the same for every Python: versions add fields, which are empty in code that
    doesn't use them.
    """
    if isinstance(value, ast.AST):
        put(type(value).__name__)
        for name, field in _fields(value):
            put(name)
            _spell(field, put)
        put(")")
    elif isinstance(value, list):
        for entry in value:
            _spell(entry, put)
        put("]")
    else:
        put(repr(value))


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    for name in node._fields:
        field = getattr(node, name)
        # Whether a name is read or written follows from its position.
        if name == "ctx" or field is None or field == []:
            continue
        if name == "values" and isinstance(node, ast.JoinedStr):
            # Python 3.12 has an empty one in some places.
            field = [part for part in field if not _is_empty(part)]
        if name == "args" and isinstance(node, ast.Call) and _is_read(node.func):
            field = [argument for argument in field if not _is_text(argument)]
        if name == "body" and isinstance(node, _HAVE_DOCSTRINGS) and _is_docstring(field[0]):
            field = field[1:]
        yield name, field


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and _is_constant(statement.value)


def _is_read(function: ast.expr) -> bool:
    """Whether a user reads the texts that a function is called with."""
    name = getattr(function, "id", "")
    return name == "say" or name.endswith(("Error", "Warning"))


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.JoinedStr) or _is_constant(value)


def _is_empty(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == ""


def _is_constant(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


if __name__ == "__main__":
    write_lock()
