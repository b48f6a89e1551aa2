"""Whether generated text equals its reference, as a metric of the `evaluate` library."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

_TEXTS = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}


class ExactMatch(evaluate.Metric):
    """Share of the texts that equal their reference, without white space around them."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Share of the texts that equal their reference.",
            citation="",
            features=datasets.Features(_TEXTS),
        )

    def _compute(
        self, predictions: list[str], references: list[str]
    ) -> dict[str, float | list[bool]]:
        pairs = zip(predictions, references, strict=True)
        scores = [prediction.strip() == reference.strip() for prediction, reference in pairs]
        return {"exact_match": sum(scores) / len(scores), "scores": scores}


def applies_to(
    prompts: Sequence[str], references: Sequence[str], formats: Sequence[str]
) -> list[int]:
    """Every prompt; see `Metric`."""
    return list(range(len(prompts)))


def judged(
    prompts: Sequence[str], continuations: Sequence[str], references: Sequence[str]
) -> list[Any]:
    """Judge continuations by their references; see `Metric`."""
    found = ExactMatch(keep_in_memory=True).compute(
        predictions=continuations, references=references
    )
    scores: list[Any] = found["scores"]
    return scores
