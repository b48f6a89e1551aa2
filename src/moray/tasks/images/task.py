"""Image classification as a task: batches of images, their random changes, the loss of labels.

Changes are a pure function of seed, epoch and image. An image's position in the order's sequence
says both epoch and image, so the changes are drawn from seed and position. They are the same for
any number of workers, in memory and streamed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from moray.errors import UserError, first_line
from moray.model.classifiers import names_of
from moray.model.quantization import Bits, Quantization
from moray.proofs.figures import Figures
from moray.rows.loader import stored_windows
from moray.rows.store import RowPositions, Rows, WindowReader, record_of
from moray.tasks.images import proofs
from moray.tasks.images.classifier import empty_classifier, load_classifier
from moray.train.task import Batch, LossModule
from moray.workers.collectives import from_first_worker

# The label of padding, which has no loss.
IGNORED = -100

# Tells these draws from those of the order, which have the same seed.
_STREAM = 0xA06


@dataclass(frozen=True)
class ImageBatch(Batch):
    """Images and their labels.

    Attributes:
        pixels: normalised, fp32, shape (images, channels, height, width).
        labels: shape (images,).
    """

    pixels: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Normalization:
    """The normalization of each channel: multiply, then add.

    Attributes:
        scale: shape (channels, 1, 1).
        offset: shape (channels, 1, 1).
    """

    scale: NDArray[np.float32]
    offset: NDArray[np.float32]

    @classmethod
    def of(cls, section: dict[str, list[float]]) -> Self:
        columns = (np.array(section[key], np.float32) for key in ("scale", "offset"))
        return cls(*(column.reshape(-1, 1, 1) for column in columns))


@dataclass(frozen=True)
class Augmentation:
    """The `data.augmentation` section of the config.

    Attributes:
        shift: maximum number of pixels by which an image is moved.
        crop: maximum share of height and width that is cut away before an image is resized.
        flip: whether half of the images are mirrored.
    """

    shift: int = 0
    crop: float = 0.0
    flip: bool = False


def make_batch(
    rows: Rows,
    normalization: Normalization,
    augmentation: Augmentation | None = None,
    row_positions: RowPositions | None = None,
) -> ImageBatch:
    """Make a batch of rows, without their padding.

    Padding would count in BatchNorm's statistics. A batch of nothing else keeps one image, without
    a label, because workers that shard a model have to compute together.

    Args:
        rows: shape (rows,).
        row_positions: where in the order's sequence they are; None for held-out images, which
            stay as they are.
    """
    places = np.flatnonzero(rows["filled"])
    # Fields of a record aren't contiguous.
    pixels = np.ascontiguousarray(rows["pixels"][places])
    labels = rows["label"][places].astype(np.int64)
    if not len(places):
        pixels, labels = np.zeros_like(rows["pixels"][:1]), np.array([IGNORED])
    elif augmentation and row_positions:
        pixels = augment(pixels, augmentation, row_positions.at(places))
    values = pixels * normalization.scale
    values += normalization.offset
    return ImageBatch(torch.from_numpy(values), torch.from_numpy(labels))


def augment(
    pixels: NDArray[np.uint8], settings: Augmentation, row_positions: RowPositions
) -> NDArray[np.uint8]:
    """Change images, shape (images, channels, height, width)."""
    if settings == Augmentation():
        return pixels
    output = np.zeros_like(pixels)
    for number, position in enumerate(row_positions.positions.tolist()):
        random = np.random.default_rng([row_positions.seed, position, _STREAM])
        # All are drawn in any case, so that one key doesn't change what another one draws.
        down, right = random.integers(-settings.shift, settings.shift, 2, endpoint=True).tolist()
        mirror = random.random() < 0.5
        size, top, left = random.random(3).tolist()
        image = _crop(pixels[number], 1 - settings.crop * size, top, left)
        image = image[:, :, ::-1] if settings.flip and mirror else image
        _move(image, output[number], down, right)
    return output


def _crop(image: NDArray[np.uint8], share: float, top: float, left: float) -> NDArray[np.uint8]:
    """A part of an image, resized to the whole.

    Args:
        image: shape (channels, height, width).
        share: share of height and width that is kept.
        top: where the part is between the top (0) and the bottom (1).
        left: where it is between the left and the right.
    """
    rows, columns = (
        _kept_positions(whole, share, where)
        for whole, where in zip(image.shape[1:], (top, left), strict=True)
    )
    return image[:, rows[:, None], columns]


def _kept_positions(whole: int, share: float, where: float) -> NDArray[np.int64]:
    """The pixels along a side of the part that is kept, repeated to the whole length."""
    part = max(1, round(whole * share))
    return int(where * (whole - part + 1)) + np.arange(whole) * part // whole


def _move(image: NDArray[np.uint8], into: NDArray[np.uint8], down: int, right: int) -> None:
    """Copy an image to another place of an array of zeros; what lies outside is cut off."""
    height, width = image.shape[1:]
    into[:, max(0, down) : max(0, height + down), max(0, right) : max(0, width + right)] = image[
        :, max(0, -down) : max(0, height - down), max(0, -right) : max(0, width - right)
    ]


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

    def batch(self, rows: Rows, row_positions: RowPositions | None) -> ImageBatch:
        return make_batch(rows, self._normalization, self._augmentation, row_positions)

    def weight(self, rows: Rows) -> int:
        return int(rows["filled"].sum())

    def plain(
        self,
        folder: Path,
        start: Path,
        rows: Rows,
        bits: Bits | None,
        device: torch.device,
        gradient: bool,
    ) -> Figures:
        return Figures(proofs.loss_of(folder, rows, device))

    def window_reader(self, store: Path, rows_url: str) -> WindowReader:
        return stored_windows(store, rows_url)


task = ImageTask
