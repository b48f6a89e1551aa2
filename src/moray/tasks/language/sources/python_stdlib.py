"""The standard library of the running Python as a corpus of modules or functions."""

import ast
import hashlib
import platform
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from functools import partial
from io import StringIO
from itertools import groupby
from pathlib import Path

from moray.config.schema.datasets import PythonStdlib
from moray.corpus.dataset import Document
from moray.corpus.parts import ready_parts
from moray.corpus.sources import OpenSource
from moray.tasks.language.sources.python_names import tagged

# Not library code: tests, bundled wheels and generated tables.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_MANY_FUNCTIONS = 100
_LEFT_OUT |= {"_sysconfigdata", "pydoc_data", "lib2to3"}


def open_source(
    section: PythonStdlib, files: Mapping[str, list[str]], temporary: Path
) -> OpenSource:
    """Open modules, functions or answers, by the format."""
    makers = {
        "text": modules,
        "prompt-completion": functions,
        "preference": pairs,
        "unpaired-preference": answers,
        "classification": labelled,
        "reward": pairs,
        "token-classification": tagged_words,
    }
    parts = partial(ready_parts, makers[section.format])
    return OpenSource({"train": parts}, {"revision": f"python {platform.python_version()}"})


def modules() -> Iterator[Document]:
    """Yield the source of each module; `group` is its path relative to the library's folder."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if _LEFT_OUT.isdisjoint(name.parts) and not name.stem.startswith("_sysconfigdata"):
            source = path.read_text(encoding="utf-8", errors="replace")
            if source.strip():
                yield Document(text=source, group=name.as_posix())


def functions() -> Iterator[Document]:
    """Yield each documented function or method: signature and docstring as prompt, then the body.

    Both are dedented, so that prompt and completion together parse. Duplicates are left out.
    """
    contents = set()
    for module in modules():
        for document in _functions_of(module["text"]):
            content = document["prompt"], document["completion"]
            if content not in contents:
                contents.add(content)
                yield Document(group=module["group"], **document)


def pairs() -> Iterator[Document]:
    """Yield each documented function with another function's body as the rejected answer.

    That body is from the same module, so that both are in the same split. Which one it is depends
    on a hash of the function. Functions without another body in their module are left out.
    """
    for _, group in groupby(functions(), key=lambda document: document["group"]):
        module = list(group)
        for function in module:
            body = function["completion"]
            others = sorted({other["completion"] for other in module} - {body})
            if others:
                name = f"{function['prompt']}\0{body}".encode()
                number = int.from_bytes(hashlib.sha256(name).digest()[:8])
                yield Document(
                    prompt=function["prompt"],
                    chosen=body,
                    rejected=others[number % len(others)],
                    tools=None,
                    group=function["group"],
                )


def answers() -> Iterator[Document]:
    """Yield one answer of each of the `pairs`, good if it is the chosen one, by a hash of both."""
    for pair in pairs():
        number = hashlib.sha256(f"{pair['chosen']}\0{pair['rejected']}".encode()).digest()[0]
        label = number % 2 == 0
        yield Document(
            prompt=pair["prompt"],
            completion=pair["chosen" if label else "rejected"],
            tools=None,
            label=label,
            group=pair["group"],
        )


def labelled() -> Iterator[Document]:
    """Yield each documented function with the name of its module or package as the label.

    Only modules with many of them count; their functions are in all splits.
    """
    of_module: dict[str, list[str]] = {}
    for function in functions():
        name = Path(function["group"]).parts[0].removesuffix(".py")
        of_module.setdefault(name, []).append(function["prompt"] + function["completion"])
    for name, texts in of_module.items():
        if len(texts) >= _MANY_FUNCTIONS:
            yield from (Document(text=text, label=name) for text in texts)


def tagged_words() -> Iterator[Document]:
    """Yield the words of each documented function, with a tag for those that name something."""
    return tagged(functions())


def _functions_of(source: str) -> Iterator[Document]:
    lines = _lines(source)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node) is None or len(node.body) < 2:
            continue
        body_starts = node.body[0].end_lineno
        if node.body[1].lineno == body_starts:
            continue  # `"""Docstring."""; return 1`: docstring and body share a line
        whole = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))
        if not _parses(whole):
            continue  # the indentation of a docstring can prevent dedenting
        cut = (body_starts or 0) - node.lineno + 1
        dedented = _lines(whole)
        yield Document(prompt="".join(dedented[:cut]), completion="".join(dedented[cut:]))


def _lines(source: str) -> list[str]:
    # `splitlines` would also split at form feeds, which `ast` doesn't count as lines.
    return StringIO(source, newline="\n").readlines()


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
