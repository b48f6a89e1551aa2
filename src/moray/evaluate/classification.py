"""Classifiers of any modality: compare what two say about held-out rows, each with a label."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from moray.corpus.dataset import Document, read_documents
from moray.evaluate.batches import Arrays
from moray.evaluate.bootstrap import compare, sums_of_units, units_to_resample
from moray.evaluate.driver import start_evaluation_workers
from moray.evaluate.worker import (
    Evaluation,
    EvaluationJob,
    Load,
    batch_results,
    may_be_bf16,
)
from moray.proofs.budget import TOO_LARGE, num_rows_affordable
from moray.proofs.comparison import Comparison, transformers_version
from moray.proofs.figures import ROUNDED
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import MANIFEST, read_manifest
from moray.rows.store import Rows, StoredRows, groups_of, sample
from moray.workers.entry import Worker
from moray.workers.memory import split_on_out_of_memory

# Rows that are compared with plain transformers.
COMPARED = 16

Answers = dict[int, NDArray[np.float32]]
"""Log-probabilities of the classes, by the number of the row in its split."""


def _log_probabilities(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1)


@dataclass(frozen=True)
class Classifier:
    """How the models of a task tell the classes of rows apart, which have a field `label`.

    Workers get its functions by their names.

    Attributes:
        unit: what rows are, plural, as `eval.json` counts them.
        load: loads a model in evaluation mode.
        logits: those of rows, shape (rows, classes), by a model and the manifest of their store.
        plain_loss: the mean loss of rows, by plain transformers with the model of a folder in fp32.
        tokens: a row takes a model about as much as so many tokens take a language model.
        answers: what is kept of logits; by default, log-probabilities of the classes.
    """

    unit: str
    load: Load
    logits: Callable[[PreTrainedModel, Rows, dict[str, Any]], Tensor]
    plain_loss: Callable[[Path, Rows, torch.device], float]
    tokens: int
    answers: Callable[[Tensor], Tensor] = _log_probabilities


def classify_on_worker(
    job: EvaluationJob, worker: Worker, classifier: Classifier, max_rows: int | None
) -> dict[str, Answers]:
    """Classify this worker's rows of the store's test split with each model.

    Args:
        max_rows: number of rows to classify; None for all.
    """
    (store,) = job.stores
    split, manifest = StoredRows(store, "test"), read_manifest(store)
    numbers = rows_to_classify(split, max_rows)

    @torch.no_grad()
    def compute(
        model: PreTrainedModel, part: str, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[Arrays]:
        def classify(some: Sequence[int]) -> list[NDArray[np.float32]]:
            logits = classifier.logits(model, split.rows[list(some)], manifest).float()
            return list(classifier.answers(logits).cpu().numpy())

        for batch in batches:
            answers = split_on_out_of_memory(classify, batch.tolist())
            yield {"rows": batch, "answers": np.stack(answers)}

    by_model: dict[str, Answers] = {name: {} for name in job.models}
    for batch, arrays in batch_results(compute, {"test": numbers}, job, worker, classifier.load):
        by_model[batch.model] |= zip(arrays["rows"].tolist(), arrays["answers"], strict=True)
    return by_model


def rows_to_classify(split: StoredRows, max_rows: int | None) -> NDArray[np.int64]:
    """The numbers of the rows to classify, ascending."""
    return sample(len(split), len(split) if max_rows is None else max_rows)


def collect_answers(parts: Sequence[Answers]) -> NDArray[np.float32]:
    """The answers of all workers, in the order of the rows, shape (rows, classes)."""
    whole = {number: answer for part in parts for number, answer in part.items()}
    return np.stack([whole[number] for number in sorted(whole)])


def evaluation_of(
    classifier: Classifier, models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
) -> Evaluation:
    """Compare models on the rows of one dataset, with a table of the classes.

    Intervals are over groups of rows, or over rows if nothing belongs together.
    """
    (store,) = stores
    split, names = StoredRows(store, "test"), read_manifest(store)["label_names"]
    numbers, unit = rows_to_classify(split, cfg["max_documents"]), classifier.unit
    labels = split.rows["label"][numbers].astype(np.int64)
    name, units = units_to_resample(
        {"groups": groups_of(store, "test", numbers), unit: np.arange(len(numbers))}
    )

    def scores(results: list[dict[str, Answers]]) -> dict[str, Any]:
        base, tuned = (
            collect_answers([result[of] for result in results]) for of in ("base", "tuned")
        )
        before, after = (sums_of_units(_sums(answers, labels), units) for answers in (base, tuned))
        samples, confidence = cfg["bootstrap_samples"], cfg["confidence"]
        return {
            unit: len(labels),
            "label_names": names,
            "confidence": confidence,
            "resampled": name,
            **compare(before, after, _figures, samples, confidence),
            "by_class": {
                of: by_class(answers, labels, names, unit)
                for of, answers in (("base", base), ("tuned", tuned))
            },
        }

    def proof(results: list[dict[str, Answers]], seconds: float) -> Iterator[Comparison]:
        def loss(answers: NDArray[np.float32]) -> float:
            nll = -answers[np.arange(len(answers)), labels[: len(answers)]]
            return float(nll.astype(np.float64).mean())

        rows = split.rows[numbers[:COMPARED]]
        return compare_losses(classifier, models, rows, results, loss, seconds, cfg["precision"])

    return Evaluation(
        figures=("accuracy",),
        rows=[len(labels)],
        entry_point=partial(
            classify_on_worker, classifier=classifier, max_rows=cfg["max_documents"]
        ),
        scores=scores,
        proof=proof,
    )


def compare_losses(
    classifier: Classifier,
    models: Mapping[str, Path],
    rows: Rows,
    results: Sequence[Mapping[str, Answers]],
    loss: Callable[[NDArray[np.float32]], float],
    seconds: float,
    precision: str,
) -> Iterator[Comparison]:
    """Compare the loss of the first rows with plain transformers', for each model.

    Args:
        rows: those to compare at most.
        loss: the mean loss of the first rows, by their answers.
        seconds: that classifying took.
        precision: that of the `evaluate` section.
    """
    for name, folder in models.items():
        what = f"loss of {name} on held-out {classifier.unit}"
        rows = rows[: num_rows_affordable(folder, seconds, classifier.tokens, len(models))]
        if not len(rows):
            yield Comparison(what, skipped=TOO_LARGE)
            continue
        answers = collect_answers([result[name] for result in results])[: len(rows)]
        yield Comparison(
            what,
            loss(answers),
            classifier.plain_loss(folder, rows, torch.device("cpu")),
            transformers_version(),
            len(rows),
            ROUNDED if may_be_bf16(precision) else 1e-4,
        )


def answers_for_samples(
    classifier: Classifier,
    run: str,
    models: Mapping[str, Path],
    store: Path,
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str,
) -> dict[str, NDArray[np.float32]]:
    """The answers of models for as many test rows as there are samples, by the models' names."""
    count = len(rows_to_classify(StoredRows(store, "test"), cfg["num_samples"]))
    with start_evaluation_workers("generate", run, output, cfg, execution, code) as workers:
        classify = partial(classify_on_worker, classifier=classifier, max_rows=cfg["num_samples"])
        folders = {name: folder.absolute() for name, folder in models.items()}
        results = workers.run(classify, folders, (store.absolute(),), count)
    return {name: collect_answers([result[name] for result in results]) for name in models}


def documents_at(file: Path, numbers: NDArray[Any]) -> Iterator[Document]:
    """The documents of a split with these numbers, in their order."""
    chosen = {*numbers.tolist()}
    for number, document in enumerate(chain.from_iterable(read_documents(file))):
        if number in chosen:
            yield document


def write_samples(output: Path, samples: Iterable[Mapping[str, Any]]) -> None:
    """Write samples as JSON Lines."""
    with output.open("w") as file:
        for sample in samples:
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")


def seal_samples(settings: Path, record: Mapping[str, Any], folders: Iterable[Path]) -> None:
    """Write what samples depend on: their settings, and the manifests of folders."""
    inputs = [folder / MANIFEST for folder in folders]
    write_sealed(settings, dict(sorted(record.items())), inputs)


def _sums(answers: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Loss, whether the answer is right, and one, of each row, shape (rows, 3)."""
    nll = -answers[np.arange(len(labels)), labels]
    columns = nll, answers.argmax(-1) == labels, np.ones(len(labels))
    return np.stack(columns, axis=1).astype(np.float64)


def _figures(sums: NDArray[np.float64]) -> dict[str, float]:
    nll, correct, rows = sums.tolist()
    return {"loss": nll / rows, "accuracy": correct / rows}


def by_class(
    answers: NDArray[np.float32], labels: NDArray[np.int64], names: list[str], unit: str
) -> dict[str, Any]:
    """How a model does on each class.

    Returns:
        `confusion`: number of rows, a row for each label and a column for each prediction;
        `classes`: rows (by their unit), recall and precision of each class, None where there is
        nothing to count.
    """
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion, (labels, answers.argmax(-1)), 1)
    hits, truly, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    table = {
        name: {
            unit: int(truly[number]),
            "recall": _share(hits[number], truly[number]),
            "precision": _share(hits[number], predicted[number]),
        }
        for number, name in enumerate(names)
    }
    return {"classes": table, "confusion": confusion.tolist()}


def _share(part: np.int64, whole: np.int64) -> float | None:
    return float(part / whole) if whole else None
