"""Functions that nobody has read against the examples of their docstrings, in a sandbox."""

import ast
import json
import secrets
from functools import cache

from moray.extras.doctests.sandbox import run_sandboxed
from moray.tasks.language.metrics import Metric
from moray.tasks.language.sources import python_stdlib

# A body for which examples that need the function fail.
_STUB = "\n{indent}raise NotImplementedError\n"

# The names of the module are those that the function and its examples find. A function could end
# the process or write to its output, but doesn't know the word that says that all examples passed.
_PROGRAM = """
import doctest, importlib, json, os, sys
job = json.loads(sys.stdin.read())
output = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
names = {}
if job["module"]:
    names = dict(vars(importlib.import_module(job["module"])))
exec(compile(job["source"], "<function>", "exec"), names)
found = doctest.DocTestFinder(recurse=False).find(
    names[job["name"]], job["name"], module=False, globs=names
)
runner = doctest.DocTestRunner(verbose=False)
for test in found:
    runner.run(test)
if runner.tries and not runner.failures:
    print(job["word"], file=output)
"""


def function_of(prompt: str) -> tuple[str, str] | None:
    """The function whose body follows a prompt.

    Returns:
        Its name, and the module of the standard library that it is from, empty if it is from none;
        None if the prompt isn't a signature and a docstring with examples.
    """
    if ">>>" not in prompt:
        return None
    try:
        (node,) = ast.parse(prompt).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    return node.name, _modules().get(prompt, "")


def passes(source: str, name: str, module: str) -> bool:
    """Whether a function has doctests, and passes them; it may use the names of a module."""
    word = secrets.token_hex(8)
    job = {"source": source, "name": name, "module": module, "word": word}
    return run_sandboxed(_PROGRAM, json.dumps(job)).split() == [word]


def is_judgeable(prompt: str, reference: str) -> bool:
    """Whether the examples of a prompt judge the function's body.

    The original body passes them, and they fail without it: many examples call something else, or
    need more than the module.
    """
    function = function_of(prompt)
    if function is None:
        return False
    indent = reference[: len(reference) - len(reference.lstrip())]
    stub = prompt + _STUB.format(indent=indent.rpartition("\n")[2])
    return passes(prompt + reference, *function) and not passes(stub, *function)


@cache
def _modules() -> dict[str, str]:
    """The module of each documented function of the standard library, by its prompt."""
    return {
        document["prompt"]: document["group"]
        .removesuffix(".py")
        .removesuffix("/__init__")
        .replace("/", ".")
        for document in python_stdlib.functions()
    }


def _values(prompt: str, continuation: str, reference: str) -> tuple[str, ...]:
    function = function_of(prompt)
    assert function
    return (prompt + continuation, *function)


METRIC = Metric(
    "Share of the functions that pass their doctests, in a sandbox.",
    ("predictions", "names", "modules"),
    passes,
    _values,
    lambda prompt, reference, format: (
        format not in ("text", "messages") and is_judgeable(prompt, reference)
    ),
)
