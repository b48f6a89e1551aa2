"""Image classification as a task; see `Task` for what its methods do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from moray.errors import UserError
from moray.model.classifier import empty_classifier, load_classifier, names_of
from moray.rows.order import Drawn
from moray.rows.store import Rows, record_of
from moray.rows.windows import WindowReader, stored_windows
from moray.tasks.images.augmentation import Augmentation
from moray.tasks.images.batch import Batch, Normalization, make_batch
from moray.tasks.images.loss import ImageLoss
from moray.tasks.images.rows import num_images
from moray.workers.collectives import from_first_worker


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

    def load(self, start: Path, dtype: torch.dtype, in_4bit: bool) -> PreTrainedModel:
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

    def batch(self, rows: Rows, drawn: Drawn | None) -> Batch:
        return make_batch(rows, self._normalization, self._augmentation, drawn)

    def weight(self, rows: Rows) -> int:
        """The number of images."""
        return num_images(rows)

    def window_reader(self, store: Path, rows_url: str) -> WindowReader:
        return stored_windows(store, rows_url)


task = ImageTask
