"""What metrics need."""

import pytest

from moray.evaluate.requirements import missing_for_metrics


def test_a_package_that_a_metric_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(missing_for_metrics("tuned", ["exact_match", "chrf"])) == []
    monkeypatch.setattr(
        "moray.evaluate.requirements.find_spec", lambda name: None if name == "sacrebleu" else name
    )
    assert list(missing_for_metrics("tuned", ["exact_match", "python_syntax"])) == []
    (fault,) = missing_for_metrics("tuned", ["exact_match", "chrf"])
    assert str(fault) == (
        "runs.tuned.generate.metrics: chrf needs a package that is missing: sacrebleu; "
        "pip install 'moray[metrics]'"
    )
