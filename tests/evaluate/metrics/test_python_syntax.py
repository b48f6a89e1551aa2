"""Whether generated Python parses."""

import warnings

import pytest

from moray.evaluate.metrics.python_syntax import PythonSyntax, parses


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", True),
        ("def f(x):\n    '''One.'''\n    return x\n", True),
        ("async def f():\n    await g()\n", True),
        ("import a, b", True),
        ("x = '🐍'", True),
        ("undefined_names + are_fine", True),
        ("def f(x):\n", False),
        ("  indented = 1", False),
        ("if x:\n\ty\n        z", False),
        ("print 'two'", False),
        ("return (", False),
        ("x = 'open", False),
        ("x\0y", False),
        ("x = 1\n\ufffd", False),
        ("(" * 5000 + ")" * 5000, False),
        ("x = " + "-" * 200_000 + "1", False),
    ],
)
def test_what_parses(source: str, expected: bool) -> None:
    assert parses(source) is expected


def test_a_warning_about_the_code_is_no_concern() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parses("x = '\\d' is 'y'")


def test_the_metric_is_the_share_that_parses() -> None:
    metric = PythonSyntax(keep_in_memory=True)
    predictions = ["x = 1", "x =", "", "def"]
    assert metric.compute(predictions=predictions)["python_syntax"] == 0.5
    assert metric.compute(predictions=["x = 1"]) == {"python_syntax": 1.0, "scores": [True]}
