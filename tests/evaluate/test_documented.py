"""Functions that are judged by the examples of their docstrings."""

import inspect
import statistics

import pytest

from moray.evaluate.documented import Function, function_of, judgeable
from moray.evaluate.judging import applies_to, judged
from moray.evaluate.sandbox import works

PROMPT = '''def twice(x):
    """Double a number.

    >>> twice(2)
    4
    """
'''
# Whatever its body does, the example is right.
IDLE = PROMPT.replace("twice(2)", "2 + 2")
BODY = "    return 2 * x\n"

in_sandbox = pytest.mark.skipif(
    not works(), reason="bubblewrap isn't installed here, or user namespaces aren't permitted"
)


def test_a_function_is_found_by_its_signature_and_examples() -> None:
    assert function_of(PROMPT) == Function("twice", "")
    for other in ("def f():\n    pass\n", "x = '>>>'\n", ">>> 1\n1\n", PROMPT + PROMPT):
        assert function_of(other) is None


@in_sandbox
def test_only_examples_that_the_original_passes_and_an_empty_body_fails_are_judged() -> None:
    prompts = [PROMPT, PROMPT, IDLE, "def f():\n"]
    references = [BODY, "    return 3 * x\n", BODY, "    pass\n"]
    assert judgeable(prompts, references) == [0]
    formats = ["prompt-completion"] * 3 + ["text"]
    assert applies_to("doctests", prompts, references, formats) == [0]
    assert applies_to("exact_match", prompts, references, formats) == [0, 1, 2, 3]
    assert applies_to("python_syntax", prompts, references, formats) == [0, 1, 2]


@in_sandbox
def test_continuations_are_run() -> None:
    continuations = {
        BODY: True,
        "    return x + x": True,
        "    return 5": False,
        "    return (": False,
        "    import os; os._exit(0)": False,
        "    print('passed'); return 5": False,
    }
    count = len(continuations)
    found = judged("doctests", [PROMPT] * count, list(continuations), [BODY] * count)
    assert found == list(continuations.values())


@in_sandbox
def test_functions_of_the_standard_library_have_the_names_of_their_module() -> None:
    lines = inspect.getsource(statistics.median_low).splitlines(keepends=True)
    end = max(number for number, line in enumerate(lines) if '"""' in line) + 1
    prompt, body = "".join(lines[:end]), "".join(lines[end:])
    assert function_of(prompt) == Function("median_low", "statistics")
    # Its body calls `StatisticsError`.
    assert judgeable([prompt], [body]) == [0]
