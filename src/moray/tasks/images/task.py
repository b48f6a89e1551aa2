"""Image classification as a task, and the loss of labelled images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from moray.errors import UserError, first_line
from moray.model.classifier import empty_classifier, load_classifier, names_of
from moray.model.quantization import Quantization
from moray.rows.loader import stored_windows
from moray.rows.store import Drawn, Rows, WindowReader, record_of
from moray.tasks.images.batch import IGNORED, Augmentation, ImageBatch, Normalization, make_batch
from moray.tasks.interface import LossModule
from moray.workers.collectives import from_first_worker


class ImageLoss(LossModule):
    """Cross-entropy of the labels of a batch, in nats."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: ImageBatch) -> Tensor:
        """Sum of the losses of the images, fp32, shape ()."""
        return F.cross_entropy(
            self.logits(batch), batch.labels, reduction="sum", ignore_index=IGNORED
        )

    def logits(self, batch: ImageBatch) -> Tensor:
        """Logits of the classes, fp32, shape (images, classes)."""
        try:
            logits: Tensor = self.model(pixel_values=batch.pixels).logits
        except ValueError as error:
            if not (self.training and len(batch.labels) == 1):
                raise
            raise UserError(
                "train.micro_batch_size",
                f"a forward pass has a single image, too few for BatchNorm ({first_line(error)})",
                "raise it, or change global_batch_size, so that each has two or more",
            ) from error
        return logits.float()


class ImageTask:
    """Rows are images with a label; the loss is that of the labels."""

    unit = "images"
    units_per_row = 1
    row_length = None

    def __init__(self, manifest: dict[str, Any], settings: Mapping[str, Any]) -> None:
        self.record = record_of(manifest)
        self.fault_of_bf16_on_cpu: str | None = manifest["fault_of_bf16_on_cpu"]
        self._label_names: list[str] = manifest["label_names"]
        self._normalization = Normalization.of(manifest["normalization"])
        self._augmentation = Augmentation(**settings.get("augmentation", {}))

    def load(
        self, start: Path, dtype: torch.dtype, quantization: Quantization | None
    ) -> PreTrainedModel:
        return load_classifier(start, dtype)

    def empty(self, start: Path, dtype: torch.dtype) -> PreTrainedModel:
        return empty_classifier(start, dtype)

    def loss_module(self, model: PreTrainedModel) -> ImageLoss:
        from_first_worker(lambda: self._check_classes(model))
        return ImageLoss(model)

    def _check_classes(self, model: PreTrainedModel) -> None:
        own = names_of(model.config)
        if own != self._label_names:
            differing = sorted({*own} ^ {*self._label_names})
            what = f"only one of them has {differing[0]}" if differing else "their order differs"
            raise UserError(
                "model",
                f"its classes aren't those of the dataset: {what}",
                "set classes_of of the base model to the run's dataset",
            )

    def flops_per_row(self, model: PreTrainedModel) -> float:
        """See `Task.flops_per_row`; a backward pass takes twice as many as a forward pass."""
        shape = self.record["pixels"].shape
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(pixel_values=torch.zeros(1, *shape, dtype=model.dtype, device=model.device))
        return 3.0 * float(counter.get_total_flops())

    def batch(self, rows: Rows, drawn: Drawn | None) -> ImageBatch:
        return make_batch(rows, self._normalization, self._augmentation, drawn)

    def weight(self, rows: Rows) -> int:
        return int(rows["filled"].sum())

    def window_reader(self, store: Path, rows_url: str) -> WindowReader:
        return stored_windows(store, rows_url)


task = ImageTask
