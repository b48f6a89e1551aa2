"""Functions of prompts: a signature with a docstring that has examples."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from moray.corpus.sources import python_stdlib
from moray.evaluate.metrics.doctests import passes

# A body for which examples that need the function fail.
_STUB = "\n{indent}raise NotImplementedError\n"


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
