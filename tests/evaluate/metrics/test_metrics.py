"""Metrics of continuations."""

import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from moray.config.schema import Generate
from moray.evaluate import judging
from moray.evaluate.judging import compare_judged, judged, missing_packages

PROMPTS = ["def f():\n", "x = ", "y"]
REFERENCES = ["    return 1\n", "12", "abcdef"]
CONTINUATIONS = [" return 1", "(", "abcxef"]
METRICS = Path(judging.__file__).parent / "metrics"


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
    assert judged("exact_match", PROMPTS, CONTINUATIONS, REFERENCES) == [True, False, False]
    assert judged("python_syntax", PROMPTS, CONTINUATIONS, REFERENCES) == [True, False, True]
    expected = list(map(chrf, CONTINUATIONS, REFERENCES))
    assert judged("chrf", PROMPTS, CONTINUATIONS, REFERENCES) == pytest.approx(expected)
    assert expected[0] == 100
    assert expected[1] == 0
    assert 20 < expected[2] < 60


def test_each_metric_of_the_config_has_a_module() -> None:
    (names,) = get_args(Generate.model_fields["metrics"].annotation)
    assert all(find_spec(f"moray.evaluate.metrics.{name}") for name in get_args(names))


LOADED = """
import sys, evaluate
for name in ("exact_match", "python_syntax", "chrf"):
    metric = evaluate.load(f"{sys.argv[1]}/{name}.py", keep_in_memory=True)
    references = {} if name == "python_syntax" else {"references": ["x = 1"]}
    print(metric.compute(predictions=["x = 1"], **references))
"""


@pytest.mark.long
def test_each_is_a_module_that_the_library_loads_by_its_path(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(METRICS)],
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


def test_the_mean_has_an_interval_and_the_difference_is_of_pairs() -> None:
    draw = np.random.default_rng(0)
    base = draw.random(400)
    tuned = base + 0.1 + 0.01 * draw.random(400)
    found = compare_judged(base.tolist(), tuned.tolist(), samples=500, confidence=0.95)
    assert found["samples"] == 400
    assert found["base"]["value"] == pytest.approx(base.mean())
    half = 1.96 * base.std() / 20
    assert found["base"]["high"] - base.mean() == pytest.approx(half, rel=0.15)
    # That of two samples apart would be about as wide as the base's.
    assert found["difference"]["high"] - found["difference"]["low"] < 0.002
    assert found["difference"]["value"] == pytest.approx((tuned - base).mean())


def test_a_package_that_a_metric_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(missing_packages("tuned", ["exact_match", "chrf"])) == []
    monkeypatch.setattr(
        "moray.evaluate.judging.find_spec", lambda name: None if name == "sacrebleu" else name
    )
    assert list(missing_packages("tuned", ["exact_match", "python_syntax"])) == []
    (fault,) = missing_packages("tuned", ["exact_match", "chrf"])
    assert str(fault) == (
        "runs.tuned.generate.metrics: chrf needs a package that is missing: sacrebleu; "
        "pip install 'moray[metrics]'"
    )
