"""Image classifiers: what they say about held-out images."""

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from moray.evaluate.classification import Classifier, evaluation_of
from moray.evaluate.worker import Evaluation
from moray.rows.store import Rows
from moray.tasks.images.classifier import load_classifier
from moray.tasks.images.proofs import TOKENS, loss_of
from moray.tasks.images.task import Normalization, make_batch


def logits(model: PreTrainedModel, rows: Rows, manifest: dict[str, Any]) -> Tensor:
    """Logits of the classes of images, shape (images, classes)."""
    batch = make_batch(rows, Normalization.of(manifest["normalization"])).to(model.device)
    scores: Tensor = model(pixel_values=batch.pixels.to(model.dtype)).logits
    return scores


CLASSIFIER = Classifier("images", load_classifier, logits, loss_of, TOKENS)


def evaluation(
    models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
) -> Evaluation:
    """Compare models on the images of one dataset, with a table of the classes."""
    return evaluation_of(CLASSIFIER, models, stores, cfg)
