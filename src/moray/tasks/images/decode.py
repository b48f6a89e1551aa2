"""Decode a dataset of images once, into the pixels that training and evaluation read."""

import io
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moray.config.schema.base import Proofs
from moray.console import say
from moray.corpus.dataset import (
    SPLITS,
    Document,
    group_of,
    read_documents,
    share_of_group,
)
from moray.errors import UserError
from moray.model.classifiers import names_of
from moray.proofs.comparison import Comparison, conclude, transformers_version, write_proof
from moray.provenance.manifest import MANIFEST, write_manifest
from moray.provenance.space import check_space
from moray.rows.store import Record, Rows, RowsWriter, describe, write_groups
from moray.stages.store import OpenStore, open_store
from moray.tasks.images.classifier import (
    channels_of,
    empty_classifier,
    fault_of_bf16_on_cpu,
)
from moray.tasks.images.image_files import decode_image
from moray.tasks.images.image_processor import load_processor, normalization, pixels_of
from moray.tasks.images.proofs import furthest_apart

_AT_ONCE = 256
# Images that are compared with what the image processor makes of them.
_COMPARED = 4


def decode(
    dataset: Path,
    model: Path,
    output: Path,
    cfg: dict[str, Any],
    proofs: Proofs = "refuse",
    code: str = "",
    execution: dict[str, Any] | None = None,
) -> None:
    """Write the store of a dataset's three splits, and its manifest.

    A store of the same images, model, settings and code that a killed process has begun is
    continued.

    Args:
        proofs: what follows if the image processor makes other values of the first images.
        code, execution: as of `open_store`.

    Raises:
        UserError: if the model's image processor doesn't give all images the same size.
    """
    empty, processor = empty_classifier(model), load_processor(model)
    channels = channels_of(empty.config)
    with open_store(dataset, model, output, cfg, code, execution) as store:
        shape = _shape(dataset, processor, channels)
        facts = {
            split: _write(dataset / f"{split}.parquet", store, processor, shape) for split in SPLITS
        }
        held_out = chain.from_iterable(read_documents(dataset / "test.parquet"))
        write_groups(output, "test", map(group_of, held_out))
        scaling = normalization(processor, channels)
        write_manifest(
            output,
            task="images",
            record=describe(row_type(shape)),
            label_names=names_of(empty.config),
            normalization=scaling,
            fault_of_bf16_on_cpu=fault_of_bf16_on_cpu(empty),
            recipe=cfg,
            splits=facts,
        )
        if proofs != "off":
            comparisons = [_compare_pixels(dataset, model, output, shape, scaling)]
            proof = conclude(comparisons, proofs, f"datasets.{dataset.name}")
            write_proof(output, proof, [output / MANIFEST])
    counts = ", ".join(f"{split} {facts[split]['rows']:,}" for split in SPLITS)
    say(f"pixels {output.name}: {counts} images of {' x '.join(map(str, shape))}")


def _shape(dataset: Path, processor: Any, channels: int) -> tuple[int, ...]:
    """Channels, height and width of the first image, which all must have."""
    first = next(read_documents(dataset / "train.parquet"))[:1]
    (pixels,) = _pixels(first, processor, channels)
    return pixels.shape


def _write(file: Path, store: OpenStore, processor: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    make = partial(_make_window, file=file, processor=processor, shape=shape)
    with RowsWriter(store.folder, file.stem, journal=store.journal) as writer:
        for number, rows in store.windows(file, make, writer, f"decode {file.stem}"):
            if number == 0:
                check_space(store.folder, round(rows.nbytes / share_of_group(file, 0)))
            writer.add(rows, weight=len(rows))
        return writer.facts()


def _make_window(
    documents: list[Document],
    first_document: int,
    file: Path,
    processor: Any,
    shape: tuple[int, ...],
) -> Rows:
    pixels = [
        one
        for start in range(0, len(documents), _AT_ONCE)
        for one in _pixels(documents[start : start + _AT_ONCE], processor, shape[0])
    ]
    if different := next((one.shape for one in pixels if one.shape != shape), None):
        raise UserError(
            str(file),
            "the model's image processor gives images different sizes: "
            f"{_size(shape)} and {_size(different)}",
            "set a height and a width in its preprocessor_config.json",
        )
    return make_rows(pixels, [document["label"] for document in documents], row_type(shape))


def _compare_pixels(
    dataset: Path,
    model: Path,
    output: Path,
    shape: tuple[int, ...],
    scaling: dict[str, list[float]],
) -> Comparison:
    """Compare the first stored images of train with what the image processor makes of them."""
    documents = next(read_documents(dataset / "train.parquet"))[:_COMPARED]
    rows = np.fromfile(output / "train.rows", row_type(shape), len(documents))
    images = [Image.open(io.BytesIO(document["image"])) for document in documents]
    here, plain = furthest_apart(model, images, rows["pixels"], scaling)
    # A step of 8 bits is at least 0.004 of the largest value.
    rounding = 1e-4 * max(1.0, abs(plain)) / max(abs(here), abs(plain), 1e-9)
    return Comparison(
        "value of the pixel that differs most",
        here,
        plain,
        transformers_version(),
        len(images),
        rounding,
    )


def _pixels(documents: list[Document], processor: Any, channels: int) -> list[NDArray[np.uint8]]:
    images = [decode_image(document["image"], "an image") for document in documents]
    return pixels_of(images, processor, channels)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[2]} x {shape[1]}"


def row_type(shape: Sequence[int]) -> Record:
    """The NumPy type of a row.

    Fields: `pixels`, shape (channels, height, width); `label`; `filled`, 1, which tells a row from
    padding.
    """
    return np.dtype([("pixels", "u1", tuple(shape)), ("label", "<u4"), ("filled", "u1")])


def make_rows(pixels: Sequence[NDArray[np.uint8]], labels: Sequence[Any], record: Record) -> Rows:
    """Rows of images and their labels."""
    rows = np.ones(len(pixels), record)
    rows["pixels"] = pixels
    rows["label"] = labels
    return rows
