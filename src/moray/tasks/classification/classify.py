"""Classify a few held-out texts with a run's model and its base."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.console import say
from moray.evaluate.classification import (
    answers_for_samples,
    documents_at,
    rows_to_classify,
    seal_samples,
    write_samples,
)
from moray.provenance.manifest import read_manifest
from moray.rows.store import StoredRows
from moray.tasks.classification.evaluation import classifier_of, prior_answers, says_nothing
from moray.tasks.classification.survey import MULTI, REGRESSION

Answer = str | list[str] | float


def classify(
    run: str,
    base: Path,
    tuned: Path,
    store: Path,
    documents: Path,
    output: Path,
    settings: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
) -> None:
    """Write `samples.jsonl`: texts with their labels, and what both models say.

    Args:
        documents: the Parquet file of the test split.
    """
    manifest = read_manifest(store)
    problem, names = manifest["problem_type"], manifest["label_names"]
    split = StoredRows(store, "test")
    numbers = rows_to_classify(split, cfg["num_samples"])
    asked = {"tuned": tuned} if says_nothing(base) else {"base": base, "tuned": tuned}
    answers = answers_for_samples(
        classifier_of(problem), run, asked, store, output, cfg, execution, code
    )
    answers = {"base": prior_answers(manifest, len(numbers)), **answers}
    labels = _read(_one_hot(split.rows["label"][numbers], problem, len(names)), problem, names)
    said = {name: _read(each, problem, names) for name, each in answers.items()}
    samples = []
    for place, document in enumerate(documents_at(documents, numbers)):
        sample: dict[str, Any] = {
            key: text for key in ("text", "text_pair") if (text := document[key]) is not None
        }
        sample["label"] = labels[place]
        for name in ("base", "tuned"):
            sample[name] = said[name][place]
            if problem not in (MULTI, REGRESSION):
                largest = float(np.exp(answers[name][place].max()))
                sample[f"{name}_probability"] = round(largest, 4)
        samples.append(sample)
    write_samples(output, samples)
    seal_samples(settings, cfg, (base, tuned, store))
    before, after = (_quality(labels, said[name]) for name in ("base", "tuned"))
    say(f"{run}: {len(labels)} texts, {before} before training, {after} after")


def _one_hot(labels: NDArray[Any], problem: str, classes: int) -> NDArray[Any]:
    """Labels in the form of answers that are right."""
    if problem == MULTI:
        return labels * 2 - 1
    return labels[:, None] if problem == REGRESSION else np.eye(classes)[labels.astype(np.int64)]


def _read(answers: NDArray[Any], problem: str, names: Sequence[str]) -> list[Answer]:
    """What answers say: a name, names, or a number."""
    if problem == REGRESSION:
        return [round(float(one), 4) for one in answers[:, 0]]
    if problem == MULTI:
        return [[names[place] for place in np.flatnonzero(one > 0).tolist()] for one in answers]
    return [names[place] for place in answers.argmax(-1)]


def _quality(labels: Sequence[Answer], said: Sequence[Answer]) -> str:
    if isinstance(labels[0], float):
        errors = np.subtract(np.array(said, np.float64), np.array(labels, np.float64))
        return f"{np.abs(errors).mean():.4g} off on average"
    return f"{sum(map(lambda a, b: a == b, labels, said))} right"
