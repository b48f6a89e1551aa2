"""Whether generated Python parses, as a metric of the `evaluate` library."""

import ast
import warnings
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate


def parses(source: str) -> bool:
    """Whether a text is a syntactically valid Python module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


class PythonSyntax(evaluate.Metric):
    """Share of the texts that parse."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Share of the texts that the running Python version parses.",
            citation="",
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(self, predictions: list[str]) -> dict[str, float | list[bool]]:
        scores = [parses(prediction) for prediction in predictions]
        return {"python_syntax": sum(scores) / len(scores), "scores": scores}


def applies_to(
    prompts: Sequence[str], references: Sequence[str], formats: Sequence[str]
) -> list[int]:
    """All prompts except those of `text`, which can start within a document; see `Metric`."""
    return [number for number, format in enumerate(formats) if format != "text"]


def judged(
    prompts: Sequence[str], continuations: Sequence[str], references: Sequence[str]
) -> list[Any]:
    """Judge prompts and continuations together; see `Metric`."""
    whole = [prompt + text for prompt, text in zip(prompts, continuations, strict=True)]
    found = PythonSyntax(keep_in_memory=True).compute(predictions=whole)
    scores: list[Any] = found["scores"]
    return scores
