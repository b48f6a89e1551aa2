"""Make a base model that classifies images: from scratch, from a local folder, or from the hub."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from moray.console import say
from moray.errors import UserError
from moray.hub import refusals_explained
from moray.model.classifier import classifier_for, new_classifier
from moray.model.image_processor import load_processor, save_processor
from moray.model.obtain import copy_folder, download_snapshot
from moray.provenance.manifest import whole_or_nothing, write_manifest


def base_model_images(output: Path, cfg: dict[str, Any], dataset: Path) -> None:
    """Write a Hugging Face folder, its manifest last.

    Args:
        output: folder to write to.
        cfg: the model's section of the config.
        dataset: folder of the dataset whose classes the model tells apart.
    """
    described = json.loads((dataset / "dataset.json").read_text())
    label_names = described["label_names"]
    with (
        refusals_explained(f"models.{output.name}", str(cfg.get("repo_id"))),
        whole_or_nothing(output),
    ):
        if cfg["source"] == "scratch-vision":
            size = _image_size(output.name, cfg, described["image_size"])
            model = new_classifier(cfg, size, label_names)
            save_processor(output, size, cfg["num_channels"])
        else:
            hub = cfg["source"] == "hub"
            source = download_snapshot(cfg["repo_id"], cfg["revision"]) if hub else cfg["path"]
            with TemporaryDirectory(dir=output) as temporary:
                copy_folder(Path(source), Path(temporary))
                model = classifier_for(Path(temporary), label_names, cfg["seed"])
                load_processor(Path(temporary)).save_pretrained(output)
        model.save_pretrained(output)
        # Loaded once, so that an error shows up here.
        load_processor(output)
        parameters: int = model.num_parameters()
        write_manifest(
            output, model=cfg, parameters=parameters, architecture=model.config.model_type
        )
    say(f"model {output.name}: {parameters / 1e6:.1f} M parameters, {len(label_names)} classes")


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
