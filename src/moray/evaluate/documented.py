"""Functions whose docstring has examples: find them in prompts, and run them in the sandbox."""

import ast
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from moray.corpus.sources.text import python_stdlib
from moray.evaluate.sandbox import run_sandboxed

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


@dataclass(frozen=True)
class Function:
    """A function whose body follows its prompt.

    Attributes:
        name: its name.
        module: the module of the standard library that it is from; empty if it is from none.
    """

    name: str
    module: str


def function_of(prompt: str) -> Function | None:
    """The function of a prompt; None if that isn't a signature and a docstring with examples."""
    if ">>>" not in prompt:
        return None
    try:
        (node,) = ast.parse(prompt).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    return Function(node.name, _modules().get(prompt, ""))


def passes(source: str, name: str, module: str) -> bool:
    """Whether a function has doctests, and passes them.

    Args:
        source: the function.
        name: its name.
        module: of the standard library, whose names it can use; empty for none.
    """
    word = secrets.token_hex(8)
    job = {"source": source, "name": name, "module": module, "word": word}
    return run_sandboxed(_PROGRAM, json.dumps(job)).split() == [word]


def judgeable(prompts: Sequence[str], references: Sequence[str]) -> list[int]:
    """The numbers of the prompts whose examples judge their function.

    The original passes them, and they fail without its body: many examples call something else, or
    need more than the module.
    """
    return [
        number
        for number, pair in enumerate(zip(prompts, references, strict=True))
        if _is_judgeable(*pair)
    ]


def _is_judgeable(prompt: str, reference: str) -> bool:
    function = function_of(prompt)
    if function is None:
        return False
    indent = reference[: len(reference) - len(reference.lstrip())]
    stub = prompt + _STUB.format(indent=indent.rpartition("\n")[2])
    return passes(prompt + reference, function.name, function.module) and not passes(
        stub, function.name, function.module
    )


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
