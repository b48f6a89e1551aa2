"""chrF of generated text against its reference, as a metric of the `evaluate` library."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import sacrebleu

_TEXTS = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}


class ChrF(evaluate.Metric):
    """Mean of the texts' chrF, each from 0 to 100, with sacreBLEU's defaults.

    Source: Popovic, "chrF: character n-gram F-score for automatic MT evaluation", WMT 2015.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Mean chrF of the texts, computed by sacreBLEU.",
            citation="",
            features=datasets.Features(_TEXTS),
        )

    def _compute(
        self, predictions: list[str], references: list[str]
    ) -> dict[str, float | list[float]]:
        pairs = zip(predictions, references, strict=True)
        scores = [
            sacrebleu.sentence_chrf(prediction, [reference]).score
            for prediction, reference in pairs
        ]
        return {"chrf": sum(scores) / len(scores), "scores": scores}


def applies_to(
    prompts: Sequence[str], references: Sequence[str], formats: Sequence[str]
) -> list[int]:
    """Every prompt; see `Metric`."""
    return list(range(len(prompts)))


def judged(
    prompts: Sequence[str], continuations: Sequence[str], references: Sequence[str]
) -> list[Any]:
    """Judge continuations by their references; see `Metric`."""
    found = ChrF(keep_in_memory=True).compute(predictions=continuations, references=references)
    scores: list[Any] = found["scores"]
    return scores
