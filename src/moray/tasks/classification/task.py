"""Text classification and regression as a task: batches of texts, and the loss of their labels.

The losses are transformers' by the name of the problem: cross-entropy, the mean binary
cross-entropy of all classes, or the squared error. See `Task` for what the methods do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from moray.config.schema.losses import Classification
from moray.errors import UserError
from moray.model.quantization import Bits, Quantization
from moray.proofs.figures import Figures
from moray.rows.loader import stored_windows
from moray.rows.store import RowPositions, Rows, WindowReader, record_of
from moray.tasks.classification import proofs
from moray.tasks.classification.classifier import empty, load, names_of
from moray.tasks.classification.padded import PaddedTexts, padded
from moray.tasks.classification.survey import MULTI, REGRESSION, SINGLE
from moray.tasks.language.proofs.plain import draws
from moray.train.task import LossModule
from moray.workers.collectives import from_first_worker


@dataclass(frozen=True)
class TextBatch(PaddedTexts):
    """Texts and their labels.

    Attributes:
        labels: shape (texts,), or (texts, classes) if a text can have several.
        counted: 1, or 0 for padding, shape (texts,).
    """

    labels: Tensor
    counted: Tensor


def make_batch(rows: Rows) -> TextBatch:
    """Make a batch of rows, as wide as the longest of them."""
    labels, counted = rows["label"], (rows["length"] > 0).astype(np.float32)
    labels = labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64)
    return TextBatch(
        **vars(padded(rows)), labels=torch.from_numpy(labels), counted=torch.from_numpy(counted)
    )


class LabelLoss(LossModule):
    """The loss of the labels of a batch, as transformers has it; see `class_weights_of`."""

    def __init__(self, model: PreTrainedModel, problem: str, weights: list[float] | None) -> None:
        super().__init__()
        # Of a decoder, which would keep keys and values that nothing asks for.
        model.config.use_cache = False
        self.model, self._problem = model, problem
        self._weights = None if weights is None else torch.tensor(weights)

    def forward(self, batch: TextBatch) -> Tensor:
        """Sum of the losses of the texts, fp32, shape ()."""
        return (self._losses(batch.logits(self.model), batch.labels) * batch.counted).sum()

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        weights = self._weights if self._weights is None else self._weights.to(logits.device)
        if self._problem == SINGLE:
            return F.cross_entropy(logits, labels, weight=weights, reduction="none")
        if self._problem == MULTI:
            return F.binary_cross_entropy_with_logits(
                logits, labels, pos_weight=weights, reduction="none"
            ).mean(-1)
        return F.mse_loss(logits[:, 0], labels, reduction="none")


def class_weights_of(settings: Classification, manifest: Mapping[str, Any]) -> list[float] | None:
    """The weight of each class; None if all count alike.

    The loss of a text is multiplied by that of its class. If a text can have several, the term of
    each class that it has is.

    Raises:
        UserError: if they don't fit the labels.
    """
    wanted, names, problem = (
        settings.class_weights,
        manifest["label_names"],
        manifest["problem_type"],
    )
    if wanted is None:
        return None
    if problem == REGRESSION:
        raise _misfit("labels are numbers to predict, which have no classes")
    if wanted == "balanced":
        texts, counts = manifest["splits"]["train"]["rows"], manifest["prior"]
        if problem == MULTI:
            return [(texts - count) / count for count in counts]
        return [texts / (len(names) * count) for count in counts]
    if unknown := sorted(wanted.keys() - {*names}):
        raise _misfit(f"got {unknown[0]}, expected some of {', '.join(names[:10])}")
    return [wanted.get(name, 1.0) for name in names]


def _misfit(problem: str) -> UserError:
    return UserError("classification.class_weights", problem, "change or remove it")


class ClassificationTask:
    """Rows are texts with a label; the loss is that of the labels."""

    unit = "texts"
    units_per_row = 1
    # Kernels for rows of documents don't know padding.
    row_length = None
    fault_of_bf16_on_cpu = None

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None:
        self.record = record_of(manifest)
        self._tokens: int = manifest["block_size"]
        self._problem: str = manifest["problem_type"]
        self._names: list[str] = manifest["label_names"]
        section = Classification(**settings.get("classification", {}))
        self._weights = class_weights_of(section, manifest)

    def load(
        self, start: Path, dtype: torch.dtype, quantization: Quantization | None
    ) -> PreTrainedModel:
        return load(start, dtype)

    def empty(self, start: Path, dtype: torch.dtype) -> PreTrainedModel:
        return empty(start, dtype)

    def loss_module(self, model: PreTrainedModel) -> LabelLoss:
        from_first_worker(lambda: self._check_labels(model.config))
        return LabelLoss(model, self._problem, self._weights)

    def _check_labels(self, config: Any) -> None:
        own = names_of(config) if self._names else []
        if config.problem_type != self._problem or own != self._names:
            what = f"its labels, {config.problem_type}, aren't those of the dataset"
            raise UserError("model", what, "set classes_of of the base model to the run's dataset")

    def flops_per_row(self, model: PreTrainedModel) -> float:
        return 6.0 * self._tokens * int(model.num_parameters(exclude_embeddings=True))

    def batch(self, rows: Rows, row_positions: RowPositions | None) -> TextBatch:
        return make_batch(rows)

    def weight(self, rows: Rows) -> int:
        return int((rows["length"] > 0).sum())

    def plain(
        self,
        folder: Path,
        start: Path,
        rows: Rows,
        bits: Bits | None,
        device: torch.device,
        gradient: bool,
    ) -> Figures:
        model = proofs.load(folder).to(device)
        with_gradient = gradient and not draws(model)
        return proofs.figures_of(model, rows, self._weights, with_gradient)

    def window_reader(self, store: Path, rows_url: str) -> WindowReader:
        return stored_windows(store, rows_url)


task = ClassificationTask
