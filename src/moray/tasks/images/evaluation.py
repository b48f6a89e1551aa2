"""Image classifiers: compare what they say about held-out images."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from moray.evaluate.bootstrap import compare, sums_of_units, units_to_resample
from moray.evaluate.execution import (
    Evaluation,
    EvaluationJob,
    for_each_model,
    may_be_bf16,
    own_batches,
)
from moray.proofs.budget import TOO_LARGE
from moray.proofs.comparison import Comparison, transformers_version
from moray.proofs.figures import ROUNDED
from moray.provenance.manifest import read_manifest
from moray.rows.store import StoredRows, groups_of, sample
from moray.tasks.images.classifier import load_classifier
from moray.tasks.images.proofs import loss_of, num_images_affordable
from moray.tasks.images.task import Normalization, make_batch
from moray.workers.entry import Worker
from moray.workers.memory import split_on_out_of_memory

# Images that are compared with plain transformers.
_COMPARED = 16

Answers = dict[int, NDArray[np.float32]]
"""Log-probabilities of the classes, by the number of the image in its split."""


def classify_on_worker(
    job: EvaluationJob, worker: Worker, max_images: int | None
) -> dict[str, Answers]:
    """Classify this worker's images of the store's test split with each model.

    Args:
        max_images: number of images to classify; None for all.
    """
    (store,) = job.stores
    split = StoredRows(store, "test")
    normalization = Normalization.of(read_manifest(store)["normalization"])
    numbers = images_to_classify(split, max_images)

    @torch.no_grad()
    def answers(model: PreTrainedModel) -> Answers:
        def classify(some: Sequence[int]) -> list[NDArray[np.float32]]:
            batch = make_batch(split.rows[list(some)], normalization).to(model.device)
            logits = model(pixel_values=batch.pixels.to(model.dtype)).logits.float()
            return list(torch.log_softmax(logits, -1).cpu().numpy())

        by_number: Answers = {}
        for batch in own_batches(numbers, job, worker):
            some = batch.tolist()
            by_number |= zip(some, split_on_out_of_memory(classify, some), strict=True)
        return by_number

    return for_each_model(answers, job, worker, load_classifier)


def images_to_classify(split: StoredRows, max_images: int | None) -> NDArray[np.int64]:
    """The numbers of the images to classify, ascending."""
    return sample(len(split), len(split) if max_images is None else max_images)


def collect_answers(parts: Sequence[Answers]) -> NDArray[np.float32]:
    """The answers of all workers, in the order of the images, shape (images, classes)."""
    whole = {number: answer for part in parts for number, answer in part.items()}
    return np.stack([whole[number] for number in sorted(whole)])


def evaluation(
    models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
) -> Evaluation:
    """Compare models on the images of one dataset, with a table of the classes.

    Intervals are over groups of images, or over images if nothing belongs together.
    """
    (store,) = stores
    split, names = StoredRows(store, "test"), read_manifest(store)["label_names"]
    numbers = images_to_classify(split, cfg["max_documents"])
    labels = split.rows["label"][numbers].astype(np.int64)
    name, units = units_to_resample(
        {"groups": groups_of(store, "test", numbers), "images": np.arange(len(numbers))}
    )

    def scores_of(results: list[dict[str, Answers]]) -> dict[str, Any]:
        base, tuned = (
            collect_answers([result[of] for result in results]) for of in ("base", "tuned")
        )
        before, after = (sums_of_units(_sums(answers, labels), units) for answers in (base, tuned))
        samples, confidence = cfg["bootstrap_samples"], cfg["confidence"]
        return {
            "images": len(labels),
            "label_names": names,
            "confidence": confidence,
            "resampled": name,
            **compare(before, after, _figures, samples, confidence),
            "by_class": {
                of: _by_class(answers, labels, names)
                for of, answers in (("base", base), ("tuned", tuned))
            },
        }

    def proof(results: list[dict[str, Answers]], seconds: float) -> Iterator[Comparison]:
        few = images_to_classify(split, cfg["max_documents"])[:_COMPARED]
        for name, folder in models.items():
            what = f"loss of {name} on held-out images"
            few = few[: num_images_affordable(folder, seconds, len(models))]
            if not len(few):
                yield Comparison(what, skipped=TOO_LARGE)
                continue
            answers = collect_answers([result[name] for result in results])[: len(few)]
            losses = -answers[np.arange(len(few)), labels[: len(few)]].astype(np.float64)
            yield Comparison(
                what,
                float(losses.mean()),
                loss_of(folder, split.rows[few], torch.device("cpu")),
                transformers_version(),
                len(few),
                ROUNDED if may_be_bf16(cfg["precision"]) else 1e-4,
            )

    return Evaluation(
        figures=("accuracy",),
        rows=[len(labels)],
        entry_point=partial(classify_on_worker, max_images=cfg["max_documents"]),
        scores=scores_of,
        proof=proof,
    )


def _sums(answers: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Loss, whether the answer is right, and one, of each image, shape (images, 3)."""
    nll = -answers[np.arange(len(labels)), labels]
    columns = nll, answers.argmax(-1) == labels, np.ones(len(labels))
    return np.stack(columns, axis=1).astype(np.float64)


def _figures(sums: NDArray[np.float64]) -> dict[str, float]:
    nll, correct, images = sums.tolist()
    return {"loss": nll / images, "accuracy": correct / images}


def _by_class(
    answers: NDArray[np.float32], labels: NDArray[np.int64], names: list[str]
) -> dict[str, Any]:
    """How a model does on each class.

    Returns:
        `confusion`: number of images, a row for each label and a column for each prediction;
        `classes`: images, recall and precision of each class, None where there is nothing to count.
    """
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion, (labels, answers.argmax(-1)), 1)
    hits, truly, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    table = {
        name: {
            "images": int(truly[number]),
            "recall": _share(hits[number], truly[number]),
            "precision": _share(hits[number], predicted[number]),
        }
        for number, name in enumerate(names)
    }
    return {"classes": table, "confusion": confusion.tolist()}


def _share(part: np.int64, whole: np.int64) -> float | None:
    return float(part / whole) if whole else None
