"""Metrics of continuations, each a configuration of one metric of the `evaluate` library.

So they can be used elsewhere: `evaluate.load("src/moray/tasks/language/metrics.py", "chrf")`. For
that, this module only imports what all of them need.
"""

import ast
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import evaluate


def _compose(text: str) -> str:
    """A text in the form that many tokenizers give it, so that two that look the same are equal."""
    return unicodedata.normalize("NFC", text)


def _is_equal(prediction: str, reference: str) -> bool:
    return _compose(prediction).strip() == _compose(reference).strip()


def _chrf(prediction: str, reference: str) -> float:
    from sacrebleu import sentence_chrf

    return float(sentence_chrf(_compose(prediction), [_compose(reference)]).score)


def _parses(prediction: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(prediction)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


@dataclass(frozen=True)
class Metric:
    """What a metric says of one continuation.

    Attributes:
        columns: the names of what it takes, all text.
        score: a number, or whether something is so, of a value of each column.
        values: the value of each column, of a prompt, its continuation and its reference.
        applies: whether it can judge the continuation of a prompt, of the prompt, its reference and
            the format of its dataset; `messages` for all conversations.
    """

    description: str
    columns: tuple[str, ...]
    score: Callable[..., float]
    values: Callable[[str, str, str], tuple[str, ...]]
    applies: Callable[[str, str, str], bool] = lambda prompt, reference, format: True


METRICS = {
    "exact_match": Metric(
        "Share of the texts that equal their reference, without white space around them.",
        ("predictions", "references"),
        _is_equal,
        lambda prompt, continuation, reference: (continuation, reference),
    ),
    # Popovic, "chrF: character n-gram F-score for automatic MT evaluation", WMT 2015.
    "chrf": Metric(
        "Mean chrF of the texts, each from 0 to 100, by sacreBLEU with its defaults.",
        ("predictions", "references"),
        _chrf,
        lambda prompt, continuation, reference: (continuation, reference),
    ),
    "python_syntax": Metric(
        "Share of the texts that the running Python version parses.",
        ("predictions",),
        _parses,
        lambda prompt, continuation, reference: (prompt + continuation,),
        # Prompts of `text` can start within a document, and those of chats are no code.
        lambda prompt, reference, format: format not in ("text", "messages"),
    ),
}


def _metric(name: str) -> Metric:
    if name in METRICS:
        return METRICS[name]
    from moray.config import extras

    metric: Metric = extras.part(extras.METRICS[name], "metric").METRIC
    return metric


class Continuations(evaluate.Metric):
    """The metric that `config_name` names, a key of `METRICS` or an extra.

    `compute` returns its mean under its name, and the `scores` of all texts.
    """

    def _info(self) -> evaluate.MetricInfo:
        metric = _metric(self.config_name)
        features = dict.fromkeys(metric.columns, datasets.Value("string"))
        return evaluate.MetricInfo(
            description=metric.description, citation="", features=datasets.Features(features)
        )

    def _compute(self, **columns: list[str]) -> dict[str, float | list[float]]:
        metric = _metric(self.config_name)
        scores = list(map(metric.score, *(columns[name] for name in metric.columns)))
        return {self.config_name: sum(scores) / len(scores), "scores": scores}


def score_texts(
    name: str,
    prompts: Sequence[str],
    references: Sequence[str],
    formats: Sequence[str],
    texts_by_model: Mapping[str, Sequence[str]],
) -> dict[str, dict[int, Any]]:
    """The scores of the continuations that a metric can judge, by model and the prompt's number.

    Args:
        references: what follows them in their documents.
        formats: the format of each prompt's dataset; `messages` for all conversations.
    """
    metric = _metric(name)
    triples = zip(prompts, references, formats, strict=True)
    numbers = [number for number, triple in enumerate(triples) if metric.applies(*triple)]
    by_model: dict[str, dict[int, Any]] = {}
    for model, texts in texts_by_model.items():
        rows = [metric.values(prompts[n], texts[n], references[n]) for n in numbers]
        columns = {name: [row[at] for row in rows] for at, name in enumerate(metric.columns)}
        scores = Continuations(name, keep_in_memory=True).compute(**columns) if rows else {}
        by_model[model] = dict(zip(numbers, scores.get("scores", []), strict=True))
    return by_model
