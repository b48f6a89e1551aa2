"""Metrics of continuations, and what they need."""

import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from moray.config import extras
from moray.config.schema.sections import Generate
from moray.tasks.language import metric_requirements, metrics
from moray.tasks.language.metrics import METRICS, Continuations, score_texts

PROMPTS = ["def f():\n", "x = ", "y"]
REFERENCES = ["    return 1\n", "12", "abcdef"]
CONTINUATIONS = [" return 1", "(", "abcxef"]

parses = METRICS["python_syntax"].score


def judge(name: str, formats: str = "prompt-completion") -> dict[int, Any]:
    written = {"tuned": CONTINUATIONS}
    return score_texts(name, PROMPTS, REFERENCES, [formats] * len(PROMPTS), written)["tuned"]


def chrf(text: str, reference: str) -> float:
    """By the definition, with n-grams up to 6, recall counted twice, and no white space."""
    text, reference = "".join(text.split()), "".join(reference.split())
    precisions, recalls = [], []
    for n in range(1, 7):
        ours, theirs = (
            Counter(one[at : at + n] for at in range(len(one) - n + 1)) for one in (text, reference)
        )
        if ours and theirs:
            shared = (ours & theirs).total()
            precisions.append(shared / ours.total())
            recalls.append(shared / theirs.total())
    precision, recall = np.mean(precisions), np.mean(recalls)
    return float(100 * 5 * precision * recall / (4 * precision + recall)) if recall else 0.0


def test_each_metric_judges_continuations_as_it_says() -> None:
    assert judge("exact_match") == {0: True, 1: False, 2: False}
    assert judge("python_syntax") == {0: True, 1: False, 2: True}
    expected = list(map(chrf, CONTINUATIONS, REFERENCES))
    assert judge("chrf") == pytest.approx(dict(enumerate(expected)))
    assert expected[0] == 100
    assert expected[1] == 0
    assert 20 < expected[2] < 60


@pytest.mark.parametrize("format", ["text", "messages"])
def test_pieces_of_a_document_and_chats_are_not_judged_by_their_syntax(format: str) -> None:
    assert judge("python_syntax", format) == {}
    assert judge("exact_match", format) == judge("exact_match")


@pytest.mark.parametrize("name", ["exact_match", "chrf"])
def test_texts_that_look_the_same_are_equal(name: str) -> None:
    """Tokenizers such as Qwen's write é as one character where the document has two."""
    written = {"tuned": ["caf\u00e9 de Paris"]}
    references = ["cafe\u0301 de Paris"]
    assert score_texts(name, ["?"], references, ["text"], written)["tuned"][0] in (True, 100.0)


def test_a_prompt_keeps_its_number_where_others_are_not_judged() -> None:
    formats = ["prompt-completion", "text", "prompt-completion"]
    written = {"base": REFERENCES, "tuned": CONTINUATIONS}
    assert score_texts("python_syntax", PROMPTS, REFERENCES, formats, written) == {
        "base": {0: True, 2: True},
        "tuned": {0: True, 2: True},
    }


def test_the_metrics_are_those_of_the_config() -> None:
    (names,) = get_args(Generate.model_fields["metrics"].annotation)
    assert METRICS.keys() | extras.METRICS.keys() == set(get_args(names))


LOADED = """
import sys, evaluate
for name in ("exact_match", "python_syntax", "chrf"):
    metric = evaluate.load(sys.argv[1], name, keep_in_memory=True)
    references = {} if name == "python_syntax" else {"references": ["x = 1"]}
    print(metric.compute(predictions=["x = 1"], **references))
"""


@pytest.mark.long
def test_the_library_loads_each_by_the_path_of_the_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, metrics.__file__],
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        "{'exact_match': 1.0, 'scores': [True]}",
        "{'python_syntax': 1.0, 'scores': [True]}",
        "{'chrf': 100.0, 'scores': [100.0]}",
    ]


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
    metric = Continuations("python_syntax", keep_in_memory=True)
    predictions = ["x = 1", "x =", "", "def"]
    assert metric.compute(predictions=predictions)["python_syntax"] == 0.5
    assert metric.compute(predictions=["x = 1"]) == {"python_syntax": 1.0, "scores": [True]}


def test_a_package_that_a_metric_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(metric_requirements.missing("tuned", ["exact_match", "chrf"])) == []
    monkeypatch.setattr(
        "moray.tasks.language.metric_requirements.find_spec",
        lambda name: None if name == "sacrebleu" else name,
    )
    assert list(metric_requirements.missing("tuned", ["exact_match", "python_syntax"])) == []
    (fault,) = metric_requirements.missing("tuned", ["exact_match", "chrf"])
    assert str(fault) == (
        "runs.tuned.generate.metrics: chrf needs a package that is missing: sacrebleu; "
        "pip install 'moray[metrics]'"
    )
