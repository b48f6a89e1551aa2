"""Judge continuations by the metrics that the config names."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import numpy as np

from moray.errors import UserError
from moray.evaluate import sandbox
from moray.evaluate.bootstrap import compare
from moray.evaluate.metrics.interface import Metric

# What metrics need beyond the package's own requirements, known without importing them.
_PACKAGES = {"chrf": ("sacrebleu", "sacrebleu")}


def missing_packages(run: str, metrics: Sequence[str]) -> Iterator[UserError]:
    """What a run's metrics need and is not installed."""
    for name in metrics:
        package, module = _PACKAGES.get(name, (None, "moray"))
        if not find_spec(module):
            yield UserError(
                f"runs.{run}.generate.metrics",
                f"{name} needs a package that is missing: {package}",
                "pip install 'moray[metrics]'",
            )
    if "doctests" in metrics and not sandbox.works():
        yield UserError(
            f"runs.{run}.generate.metrics",
            "doctests needs bubblewrap (bwrap) and permission to create user namespaces",
            "install bubblewrap, or remove doctests",
        )


def applies_to(
    name: str, prompts: Sequence[str], references: Sequence[str], formats: Sequence[str]
) -> list[int]:
    """The numbers of the prompts whose continuations a metric judges.

    Args:
        name: name of the metric in the config.
        prompts: the prompts.
        references: what follows them in their documents.
        formats: the format of each prompt's dataset.
    """
    return _metric(name).applies_to(prompts, references, formats)


def judged(
    name: str, prompts: Sequence[str], continuations: Sequence[str], references: Sequence[str]
) -> list[Any]:
    """What a metric says of each continuation: a number, or whether something is so.

    Args:
        name: name of the metric in the config.
        prompts: the prompts.
        continuations: what a model wrote after each of them.
        references: what follows them in their documents.
    """
    return _metric(name).judged(prompts, continuations, references)


def _metric(name: str) -> Metric:
    # By name, so that a new metric is no change to the code of other runs; see `config.code`.
    return cast(Metric, import_module(f"moray.evaluate.metrics.{name}"))


def compare_judged(
    base: Sequence[float], tuned: Sequence[float], samples: int, confidence: float
) -> dict[str, Any]:
    """The mean of a metric for two models, and their difference, with bootstrap intervals.

    Args:
        base: what it says of each continuation of the base.
        tuned: that of the tuned model, for the same prompts.
        samples: number of resamples of the prompts.
        confidence: coverage of the intervals.

    Returns:
        `samples`: number of prompts; for each of `base`, `tuned` and `difference`, the `value`,
        `low` and `high`.
    """
    first, second = (np.stack([scores, np.ones(len(scores))], 1) for scores in (base, tuned))
    compared = compare(
        first, second, lambda sums: {"mean": float(sums[0] / sums[1])}, samples, confidence
    )
    means = {name: figures["mean"] for name, figures in compared.items()}
    return {"samples": len(base), **means}
