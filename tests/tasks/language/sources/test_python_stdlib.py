"""The running Python's own code as a corpus."""

import ast
import sysconfig
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from moray.corpus.dataset import Document
from moray.tasks.language.sources.python_stdlib import functions, modules, pairs

Library = Callable[[dict[str, str]], None]


@pytest.fixture(scope="module")
def found() -> list[Document]:
    return list(functions())


def test_a_function_is_a_prompt_up_to_its_docstring_and_a_completion_behind(
    found: list[Document],
) -> None:
    assert len(found) > 1000
    for document in found[::10]:
        prompt, whole = document["prompt"], document["prompt"] + document["completion"]
        (opening,), (function,) = ast.parse(prompt).body, ast.parse(whole).body
        assert isinstance(opening, ast.FunctionDef | ast.AsyncFunctionDef)
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        assert [ast.get_docstring(opening) is not None, len(opening.body)] == [True, 1]
        assert ast.dump(function.body[0]) == ast.dump(opening.body[0])
        assert len(function.body) > 1


def test_no_function_is_given_twice(found: list[Document]) -> None:
    assert len({(row["prompt"], row["completion"]) for row in found}) == len(found)


def test_a_function_has_the_group_of_its_module(found: list[Document]) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    for document in found[::50]:
        source = (library / document["group"]).read_text(encoding="utf-8", errors="replace")
        assert document["prompt"].splitlines()[0].strip() in source


def test_a_module_is_its_whole_source_under_its_own_group() -> None:
    library, found = Path(sysconfig.get_path("stdlib")), list(modules())
    assert len({module["group"] for module in found}) == len(found) > 300
    for module in found[::20]:
        path = library / module["group"]
        assert module["text"] == path.read_text(encoding="utf-8", errors="replace")


def test_tests_tables_foreign_packages_and_empty_files_are_left_out(library: Library) -> None:
    kept = {"a.py": "a = 1\n", "package/b.py": "b = 1\n", "testing.py": "c = 1\n"}
    left_out = [
        "test/test_a.py",
        "package/tests/test_b.py",
        "site-packages/numpy.py",
        "dist-packages/numpy.py",
        "pydoc_data/topics.py",
        "_sysconfigdata__linux.py",
    ]
    library(kept | dict.fromkeys(left_out, "x = 1\n") | {"package/__init__.py": " \n"})
    assert {module["group"]: module["text"] for module in modules()} == kept


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            """
            def f(x):
                '''One.'''
                return x
            """,
            [("def f(x):\n    '''One.'''\n", "    return x\n")],
            id="a function",
        ),
        pytest.param(
            """
            class C:
                async def f(self):
                    '''One.

                    Two.
                    '''

                    return 1
            """,
            [
                (
                    "async def f(self):\n    '''One.\n\n    Two.\n    '''\n",
                    "\n    return 1\n",
                )
            ],
            id="a method moves to the margin",
        ),
        pytest.param(
            """
            @cache
            def f(x):
                '''One.'''
                # Why.
                return x
            """,
            [("def f(x):\n    '''One.'''\n", "    # Why.\n    return x\n")],
            id="a decorator is left out, a comment belongs to the body",
        ),
        pytest.param(
            """
            def f():
                '''One.'''
                def g():
                    '''Two.'''
                    return 2
                return g
            """,
            [
                (
                    "def f():\n    '''One.'''\n",
                    "    def g():\n        '''Two.'''\n        return 2\n    return g\n",
                ),
                ("def g():\n    '''Two.'''\n", "    return 2\n"),
            ],
            id="a function within another is given by itself too",
        ),
        pytest.param("def f():\n    return 1\n", [], id="no docstring"),
        pytest.param("def f():\n    '''One.'''\n", [], id="nothing but a docstring"),
        pytest.param("def f():\n    '''One.'''; return 1\n", [], id="both on one line"),
        pytest.param(
            "def f():\n    '''One.\n''' ; x = 1\n    return 1\n", [], id="body begins on its line"
        ),
        pytest.param(
            "class C:\n    def f(self):\n        '''One.\nTwo.'''\n        return 1\n",
            [],
            id="a docstring at the margin keeps a method from moving there",
        ),
        pytest.param(
            "x = 1\n\f\ny = '\x1c'\ndef f():\n    '''One.'''\n    return 1\n",
            [("def f():\n    '''One.'''\n", "    return 1\n")],
            id="a form feed is no line",
        ),
        pytest.param(
            "def f():\n    '''One.'''\n    return 1",
            [("def f():\n    '''One.'''\n", "    return 1")],
            id="the last line has no end",
        ),
    ],
)
def test_functions_of_a_module(
    library: Library, source: str, expected: list[tuple[str, str]]
) -> None:
    library({"a.py": dedent(source)})
    assert [(row["prompt"], row["completion"]) for row in functions()] == expected


def test_a_copy_in_another_module_is_given_once(library: Library) -> None:
    source = "def f():\n    '''One.'''\n    return 1\n"
    library({"a.py": source, "b.py": f"import os\n{source}"})
    assert [row["group"] for row in functions()] == ["a.py"]


@pytest.mark.release
def test_of_a_pair_the_rejected_body_is_another_of_the_same_module(found: list[Document]) -> None:
    bodies: dict[str, set[str]] = {}
    for function in found:
        bodies.setdefault(function["group"], set()).add(function["completion"])
    own = {(function["prompt"], function["completion"]) for function in found}
    made = list(pairs())
    assert len(made) > 0.95 * len(found)
    for pair in made:
        assert (pair["prompt"], pair["chosen"]) in own
        assert pair["rejected"] in bodies[pair["group"]] - {pair["chosen"]}
    assert made == list(pairs())
    # Bodies are rejected about as often as they are chosen.
    assert len({pair["rejected"] for pair in made}) > len(made) / 2


def test_a_function_without_another_body_in_its_module_has_no_pair(library: Library) -> None:
    function = "def {}():\n    '''One.'''\n    return 1\n"
    library({"a.py": function.format("f"), "b.py": function.format("g") + function.format("h")})
    assert list(pairs()) == []
