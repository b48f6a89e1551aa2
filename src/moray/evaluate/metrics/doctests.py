"""Whether generated functions pass their own doctests, as a metric of the `evaluate` library.

The functions run: in the sandbox of `moray.evaluate.sandbox`.
"""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from moray.evaluate.documented import function_of, judgeable, passes


class Doctests(evaluate.Metric):
    """Share of the functions that pass their doctests."""

    def _info(self) -> evaluate.MetricInfo:
        columns = dict.fromkeys(("predictions", "names", "modules"), datasets.Value("string"))
        return evaluate.MetricInfo(
            description="Share of the functions that pass their doctests, in a sandbox.",
            citation="",
            features=datasets.Features(columns),
        )

    def _compute(
        self, predictions: list[str], names: list[str], modules: list[str]
    ) -> dict[str, float | list[bool]]:
        scores = list(map(passes, predictions, names, modules))
        return {"doctests": sum(scores) / len(scores), "scores": scores}


def applies_to(
    prompts: Sequence[str], references: Sequence[str], formats: Sequence[str]
) -> list[int]:
    """Functions whose doctests the reference passes and an empty body fails; see `Metric`."""
    numbers = [number for number, format in enumerate(formats) if format != "text"]
    some = judgeable(*([texts[number] for number in numbers] for texts in (prompts, references)))
    return [numbers[number] for number in some]


def judged(
    prompts: Sequence[str], continuations: Sequence[str], references: Sequence[str]
) -> list[Any]:
    """Judge the functions of prompts and continuations together; see `Metric`."""
    functions = [function for prompt in prompts if (function := function_of(prompt))]
    found = Doctests(keep_in_memory=True).compute(
        predictions=[prompt + text for prompt, text in zip(prompts, continuations, strict=True)],
        names=[function.name for function in functions],
        modules=[function.module for function in functions],
    )
    scores: list[Any] = found["scores"]
    return scores
