"""Image classifiers by plain transformers: pixels by the processor, losses by the model."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn
from transformers import AutoImageProcessor, AutoModelForImageClassification

from moray.proofs.budget import TOO_LARGE, num_rows_affordable
from moray.proofs.comparison import Comparison, transformers_version
from moray.proofs.figures import ROUNDED

_LOCAL = {"local_files_only": True, "trust_remote_code": False}
# An image takes a model about as much as so many tokens take a language model of its size.
TOKENS = 256
_MOST_PREDICTIONS = 16


def compare_base(
    folder: Path, source: Path | None, model: Any, dataset: Path, seconds: float
) -> Iterator[Comparison]:
    """Compare a base model with what is read back from its folder, and with its source.

    Args:
        folder: of the base model.
        source: the folder that it was made from; None for a model from scratch.
        model: as it was written, in evaluation mode.
        dataset: it classifies the first image to train on.
        seconds: that making it took.
    """
    # By up to three models.
    if num_rows_affordable(folder, seconds, TOKENS, num_models=3) < 1:
        yield Comparison("logits of an image", skipped=TOO_LARGE)
        return
    pixels = _pixels(folder, _first_image(dataset, model.config))
    read, _ = _load(folder)
    weights = read.state_dict()
    own = model.state_dict()
    equal = sum(name in weights and torch.equal(own[name], weights[name]) for name in own)
    yield _of("weights that are read back as they were", len(own), equal)
    logits = _logits(read, pixels)
    yield _furthest("logit of an image that differs most", _logits(model, pixels), logits)
    if source is None:
        return
    original, has_all = _load(source)
    before = original.state_dict()
    body = [name for name in own if not _is_output(read, name)]
    num_equal = sum(name in before and torch.equal(weights[name], before[name]) for name in body)
    yield _of("weights of its source, but for output layers", len(body), num_equal)
    names, order = _names(read), _names(original)
    if has_all and sorted(names) == sorted(order):
        expected = _logits(original, pixels)[[order.index(name) for name in names]]
        yield _furthest("logit of a class that differs most from its source's", logits, expected)


def _load(folder: Path) -> tuple[Any, bool]:
    """A model in fp32 and evaluation mode, and whether its folder has all of its weights."""
    model, report = AutoModelForImageClassification.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **_LOCAL
    )
    return model.eval(), not report["missing_keys"]


def _first_image(dataset: Path, config: Any) -> Image.Image:
    rows = next(pq.ParquetFile(dataset / "train.parquet").iter_batches(1, columns=["image"]))
    image = Image.open(io.BytesIO(rows["image"][0].as_py()))
    return image.convert("RGB" if getattr(config, "num_channels", 3) == 3 else "L")


def _pixels(folder: Path, image: Image.Image) -> Tensor:
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil", **_LOCAL)
    pixels: Tensor = processor(image, return_tensors="pt")["pixel_values"]
    return pixels


@torch.no_grad()
def _logits(model: Any, pixels: Tensor) -> Tensor:
    logits: Tensor = model(pixel_values=pixels).logits[0]
    return logits


def _is_output(model: Any, name: str) -> bool:
    layer = model.get_submodule(name.rpartition(".")[0])
    return isinstance(layer, nn.Linear) and layer.out_features == model.config.num_labels


def _names(model: Any) -> list[str]:
    names = model.config.id2label or {}
    return [names[number] for number in sorted(names)]


def _furthest(what: str, here: Tensor, plain: Tensor) -> Comparison:
    place = (here - plain).abs().argmax()
    figures = float(here[place]), float(plain[place])
    # A small one has no more digits after the point than the largest.
    largest = float(plain.abs().max()) / max(*map(abs, figures), 1e-9)
    return Comparison(what, *figures, transformers_version(), 1, 1e-4 * max(1.0, largest))


def _of(what: str, here: int, plain: int) -> Comparison:
    return Comparison(what, here, plain, transformers_version())


class Values(NamedTuple):
    """Two values of the same pixel: moray's and the processor's own."""

    ours: float
    theirs: float

    @property
    def differ(self) -> bool:
        """Whether it is more than rounding: of 8 bits, a step is at least 0.004 of the largest."""
        return not abs(self.ours - self.theirs) <= 1e-4 * max(1.0, abs(self.theirs))


def furthest_apart(
    folder: Path,
    images: Sequence[Image.Image],
    pixels: NDArray[np.uint8],
    normalization: Mapping[str, Sequence[float]],
) -> Values:
    """The values of the pixel for which moray and the processor of a folder differ the most.

    The processor gets images as transformers' pipelines give them. NaN stands for its value if it
    makes another shape of an image.

    Args:
        images: images as they are opened.
        pixels: what is stored of each, shape (images, channels, height, width).
        normalization: `scale` and `offset` of each channel.
    """
    processor: Any = AutoImageProcessor.from_pretrained(folder, backend="pil")
    mode = "RGB" if pixels.shape[1] == 3 else "L"
    upright = (ImageOps.exif_transpose(image).convert(mode) for image in images)
    theirs = [np.asarray(processor(image)["pixel_values"][0], np.float64) for image in upright]
    scale, offset = (np.reshape(normalization[key], (-1, 1, 1)) for key in ("scale", "offset"))
    furthest = Values(0.0, 0.0)
    for own, expected in zip(pixels * scale + offset, theirs, strict=True):
        if own.shape != expected.shape:
            return Values(float(own.flat[0]), float("nan"))
        place = np.unravel_index(np.abs(own - expected).argmax(), own.shape)
        here = Values(float(own[place]), float(expected[place]))
        furthest = max(furthest, here, key=lambda values: abs(values.ours - values.theirs))
    return furthest


def loss_of(folder: Path, rows: NDArray[np.void], device: torch.device) -> float:
    """Mean loss of stored images, nats, in fp32 and evaluation mode.

    Args:
        folder: of the model and its image processor.
        rows: with the fields `pixels` (before they are normalised), `label` and `filled`.
    """
    images = rows[rows["filled"].astype(bool)]
    labels = torch.from_numpy(images["label"].astype(np.int64)).to(device)
    return float(
        F.cross_entropy(_logits_of_stored(_load(folder)[0], folder, images, device), labels)
    )


def compare_predictions(
    models: Mapping[str, Path],
    rows: NDArray[np.void],
    classes: Mapping[str, Sequence[str]],
    probabilities: Mapping[str, NDArray[np.float32]],
    seconds: float,
    bf16: bool,
) -> Iterator[Comparison]:
    """Compare how likely each model finds the classes that it was said to predict.

    Args:
        models: folders by name.
        rows: those of the images; the first ones are compared.
        classes: the predicted class of each image, by name.
        probabilities: of these classes.
        seconds: that predicting took.
        bf16: whether the models predicted in bf16.
    """
    cpu, few = torch.device("cpu"), rows[:_MOST_PREDICTIONS]
    for name, folder in models.items():
        what = f"probability of {name}'s predictions"
        few = few[: num_rows_affordable(folder, seconds, TOKENS, len(models))]
        if not len(few):
            yield Comparison(what, skipped=TOO_LARGE)
            continue
        model, _ = _load(folder)
        names = _names(model)
        places = torch.tensor([names.index(one) for one in classes[name][: len(few)]])
        likelihoods = (
            _logits_of_stored(model, folder, few, cpu).softmax(-1).gather(1, places[:, None])
        )
        here = float(probabilities[name][: len(few)].astype(np.float64).mean())
        tolerance = ROUNDED if bf16 else 1e-4
        plain = float(likelihoods.double().mean())
        yield Comparison(what, here, plain, transformers_version(), len(few), tolerance)


@torch.no_grad()
def _logits_of_stored(
    model: Any, folder: Path, rows: NDArray[np.void], device: torch.device
) -> Tensor:
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil", **_LOCAL)
    pixels = processor(
        images=list(rows["pixels"]),
        input_data_format="channels_first",
        do_resize=False,
        do_center_crop=False,
        do_convert_rgb=False,
        return_tensors="pt",
    )["pixel_values"]
    logits: Tensor = model.to(device)(pixel_values=pixels.to(device)).logits
    return logits.float()
