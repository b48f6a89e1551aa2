"""What models say about labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from moray.evaluate.execution import EvaluationJob, of_each_model, own_batches
from moray.model.classifier import load_classifier
from moray.provenance.manifest import read_manifest
from moray.rows.sample import sample
from moray.rows.store import StoredRows
from moray.tasks.images.batch import Normalization, make_batch
from moray.workers.memory import in_parts_that_fit
from moray.workers.worker import Worker

Answers = dict[int, NDArray[np.float32]]
"""Log-probabilities of the classes, by the number of the image in its split."""


@dataclass(frozen=True)
class ClassifyJob(EvaluationJob):
    """Classify the same images of one store with each model.

    Attributes:
        max_images: number of images of the test split; None for all.
    """

    max_images: int | None


def classify_on_worker(job: ClassifyJob, worker: Worker) -> dict[str, Answers]:
    """Classify this worker's images with each model."""
    (store,) = job.stores
    split = StoredRows(store, "test")
    normalization = Normalization.of(read_manifest(store)["normalization"])
    numbers = chosen(split, job.max_images)
    cuts = range(job.execution.batch_size, len(numbers), job.execution.batch_size)
    batches = np.split(numbers, list(cuts))

    @torch.no_grad()
    def answers(model: PreTrainedModel) -> Answers:
        def classify(some: Sequence[int]) -> list[NDArray[np.float32]]:
            batch = make_batch(split.rows[list(some)], normalization).to(model.device)
            logits = model(pixel_values=batch.pixels.to(model.dtype)).logits.float()
            return list(torch.log_softmax(logits, -1).cpu().numpy())

        found: Answers = {}
        for batch in own_batches(batches, job.execution, worker):
            some = batch.tolist()
            found |= zip(some, in_parts_that_fit(classify, some), strict=True)
        return found

    return of_each_model(answers, job.models, job.execution, worker, load_classifier)


def chosen(split: StoredRows, max_images: int | None) -> NDArray[np.int64]:
    """The numbers of the images to classify, ascending."""
    return sample(len(split), len(split) if max_images is None else max_images)


def in_order(parts: Sequence[Answers]) -> NDArray[np.float32]:
    """The answers of all workers, in the order of the images, shape (images, classes)."""
    whole = {number: answer for part in parts for number, answer in part.items()}
    return np.stack([whole[number] for number in sorted(whole)])
