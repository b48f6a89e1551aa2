"""A base model that classifies images, with its image processor."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from moray.console import say
from moray.corpus.dataset import read_documents
from moray.errors import UserError, first_line
from moray.model.obtain import copy_folder
from moray.provenance.manifest import new_folder
from moray.stages.base_model import Base
from moray.tasks.images.classifier import channels_of, load_classifier, new_classifier
from moray.tasks.images.image_files import decode_image
from moray.tasks.images.image_processor import check_processor, load_processor, save_processor
from moray.tasks.images.output_layers import classifier_for
from moray.tasks.images.proofs import compare_base

# Files in which transformers looks for an image processor.
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def make(output: Path, cfg: dict[str, Any], source: Path | None, dataset: Path) -> Base:
    """Adapt a model to a dataset's classes, or make one."""
    description = json.loads((dataset / "dataset.json").read_text())
    label_names = description["label_names"]
    if source:
        copy_folder(source, output)
        _check_has_processor(output, source)
        model, notes = classifier_for(output, label_names, cfg["seed"])
        for note in notes:
            say(f"model {output.name}: {note}")
        processor = load_processor(output)
        # Nothing stays of what belongs to other classes.
        processor.save_pretrained(new_folder(output))
    else:
        size = _image_size(output.name, cfg, description["image_size"])
        model = new_classifier(cfg, size, label_names)
        save_processor(output, size, cfg["num_channels"])
    model.save_pretrained(output)
    # So that an error shows up here.
    check_processor(output, channels_of(model.config))
    _check_forward(load_classifier(output), output, dataset)
    return Base(
        model,
        partial(compare_base, output, source, model, dataset),
        more=f", {model.config.num_labels} classes",
    )


def _check_has_processor(copy: Path, source: Path) -> None:
    if not any((copy / name).is_file() for name in _PROCESSORS):
        raise UserError(
            f"models.{copy.name}",
            f"{source} has no {_PROCESSORS[0]}, so nothing says how images become its input",
            "add that of the model that it was tuned from (to a copy, as source: path, if it is "
            "from the hub), or choose another model",
        )


@torch.no_grad()
def _check_forward(model: PreTrainedModel, folder: Path, dataset: Path) -> None:
    """Check that a model computes with what its image processor makes of an image to train on."""
    path, kind = f"models.{folder.name}", model.config.model_type
    document = next(read_documents(dataset / "train.parquet"))[0]
    mode = "RGB" if channels_of(model.config) == 3 else "L"
    image = decode_image(document["image"], "an image").convert(mode)
    values = load_processor(folder)(image, return_tensors="pt")["pixel_values"]
    height, width = values.shape[2:]
    try:
        output = model(pixel_values=values)
    except Exception as error:  # architectures raise anything
        raise UserError(
            path,
            f"a {kind} model can't compute with the {width} x {height} pixels that its image "
            f"processor makes of an image ({first_line(error)})",
            "make size in its preprocessor_config.json fit image_size in its config.json, or "
            "choose another model",
        ) from error
    if not hasattr(output, "logits"):
        raise UserError(path, f"a {kind} model gives no logits", "choose another model")


def _image_size(model: str, cfg: dict[str, Any], common: list[int] | None) -> int:
    """Height and width of the images of a model from scratch."""
    path = f"models.{model}.image_size"
    if cfg["image_size"] is None and (common is None or common[0] != common[1]):
        what = "have different sizes" if common is None else f"are {common[1]} x {common[0]} pixels"
        raise UserError(path, f"is not set, and the images of {cfg['classes_of']} {what}", "set it")
    size: int = cfg["image_size"] or (common or [0])[0]
    patch = cfg["vit"]["patch_size"]
    if cfg["architecture"] == "vit" and size % patch:
        raise UserError(
            path, f"got {size}, expected a multiple of vit.patch_size ({patch})", "change one"
        )
    return size
