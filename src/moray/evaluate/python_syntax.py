"""Whether generated Python parses, as a metric of the `evaluate` library."""

import ast
import warnings

import datasets
import evaluate


def parses(source: str) -> bool:
    """Whether a text is a whole Python module, as far as its syntax goes."""
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
            description="Share of texts that the running Python parses.",
            citation="",
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(self, predictions: list[str]) -> dict[str, float]:
        return {"parses": sum(map(parses, predictions)) / len(predictions)}
