"""A base model that classifies images, with its image processor."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedModel

from moray.errors import UserError
from moray.model.classifier import channels_of, classifier_for, new_classifier
from moray.model.image_processor import check_processor, load_processor, save_processor
from moray.model.obtain import copy_folder


def make(
    output: Path, cfg: dict[str, Any], source: Path | None, dataset: Path
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Adapt a model to a dataset's classes, or make one; returns it, and no more facts about it."""
    described = json.loads((dataset / "dataset.json").read_text())
    label_names = described["label_names"]
    if source:
        with TemporaryDirectory(dir=output) as temporary:
            copy_folder(source, Path(temporary))
            model = classifier_for(Path(temporary), label_names, cfg["seed"])
            load_processor(Path(temporary)).save_pretrained(output)
    else:
        size = _image_size(output.name, cfg, described["image_size"])
        model = new_classifier(cfg, size, label_names)
        save_processor(output, size, cfg["num_channels"])
    model.save_pretrained(output)
    # So that an error shows up here.
    check_processor(output, channels_of(model.config))
    return model, {}


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
