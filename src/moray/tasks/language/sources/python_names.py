"""What names in Python code are: the words of functions with a tag each, of entities."""

import ast
import io
import json
import tokenize
from collections.abc import Iterable, Iterator
from typing import Any

from moray.corpus.dataset import Document

_WORDS = {tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING}
# Others wouldn't fit into the rows of a small model.
_MOST_WORDS = 64
_Place = tuple[int, int]


def tagged(functions: Iterable[Document]) -> Iterator[Document]:
    """Yield short functions as words with tags, without docstrings and comments, strings empty.

    The entities are `FUNCTION`, the name of a function where it is defined; `PARAMETER`, where it
    is defined and where it is used; and `EXCEPTION`, what is raised or caught.
    """
    for function in functions:
        source = function["prompt"] + function["completion"]
        # The syntax tree counts bytes, and tokens characters.
        if source.isascii():
            words, tags = _words(source)
            if len(words) <= _MOST_WORDS:
                yield Document(
                    tokens=json.dumps(words), tags=json.dumps(tags), group=function["group"]
                )


def _words(source: str) -> tuple[list[str], list[str]]:
    tree = ast.parse(source)
    entities, docstrings = dict(_entities(tree)), {*_docstrings(tree)}
    words, tags = list[str](), list[str]()
    kind, end = "", (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _WORDS or token.start in docstrings:
            continue
        is_first = token.start in entities
        if words and words[-1] == "def":
            is_first, kind, end = True, "FUNCTION", token.end
        elif is_first:
            kind, end = entities[token.start]
        tags.append(f"{'B' if is_first else 'I'}-{kind}" if token.end <= end else "O")
        words.append('""' if token.type == tokenize.STRING else token.string)
    return words, tags


def _entities(tree: ast.AST) -> Iterator[tuple[_Place, tuple[str, _Place]]]:
    """Where entities begin, what they are, and where they end."""
    nodes = [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            parameters = [one for one in ast.walk(node.args) if isinstance(one, ast.arg)]
            names = {one.arg for one in parameters}
            for one in parameters:
                # Without its annotation.
                end = one.lineno, one.col_offset + len(one.arg)
                yield (one.lineno, one.col_offset), ("PARAMETER", end)
            for used in ast.walk(node):
                if isinstance(used, ast.Name) and used.id in names:
                    yield _place(used, "PARAMETER")
    for node in nodes:
        if isinstance(node, ast.Raise):
            yield from _exceptions([node.exc])
        if isinstance(node, ast.ExceptHandler):
            yield from _exceptions(getattr(node.type, "elts", [node.type]))


def _exceptions(expressions: Iterable[Any]) -> Iterator[tuple[_Place, tuple[str, _Place]]]:
    for expression in expressions:
        named = getattr(expression, "func", expression)
        if isinstance(named, ast.Attribute | ast.Name):
            yield _place(named, "EXCEPTION")


def _place(node: Any, kind: str) -> tuple[_Place, tuple[str, _Place]]:
    return (node.lineno, node.col_offset), (kind, (node.end_lineno, node.end_col_offset))


def _docstrings(tree: ast.AST) -> Iterator[_Place]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, node.col_offset
