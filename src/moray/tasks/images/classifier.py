"""Models that classify images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import (
    AutoModelForImageClassification,
    PreTrainedConfig,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from moray.errors import UserError
from moray.model import classifiers
from moray.model.classifiers import labels


def new_classifier(
    cfg: dict[str, Any], image_size: int, label_names: Sequence[str]
) -> PreTrainedModel:
    """A randomly initialised model of a `scratch-vision` section, for images of that side.

    It is in evaluation mode.
    """
    common = {"num_channels": cfg["num_channels"], **labels(label_names)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cfg["seed"])
        if cfg["architecture"] == "resnet":
            resnet = ResNetConfig(layer_type="basic", **cfg["resnet"], **common)
            return ResNetForImageClassification(resnet).eval()
        vit = ViTConfig(image_size=image_size, **cfg["vit"], **common)
        return ViTForImageClassification(vit).eval()


def load_classifier(
    folder: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> PreTrainedModel:
    """Load a model from a folder, in evaluation mode; code and pickles in it are never run.

    Raises:
        UserError: if the folder doesn't contain a model that classifies images, or some of its
            weights are missing.
    """
    model, missing, _ = load_incomplete(folder, dtype)
    classifiers.check_complete(folder, missing, "images")
    return model.to(device).eval()


def empty_classifier(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model that `load_classifier` returns, without weights, on PyTorch's `meta` device."""
    config = classifiers.config_of(folder, "images")
    with torch.device("meta"):
        model = classifiers.built(AutoModelForImageClassification, config, folder, dtype, "images")
    return model.eval()


def fault_of_bf16_on_cpu(model: PreTrainedModel) -> str | None:
    """Why a model can't be trained in bf16 on a CPU; None if it can.

    Where a map is smaller than the kernel of a convolution, PyTorch 2.13 leaves parts of the
    weight's gradient uninitialised. Kernels that don't overlap, as those of patches, are not larger
    than what they convolve.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size > module.stride:
            return "PyTorch's gradients of convolutions in bf16 are wrong for small maps"
    return None


def channels_of(config: PreTrainedConfig) -> int:
    """Channels of the images that a model takes: colour, unless its config says something else."""
    return int(getattr(getattr(config, "vision_config", config), "num_channels", 3))


class LoadedModel(NamedTuple):
    """A model, and the names of the weights that its folder lacks, or has in vain."""

    model: PreTrainedModel
    missing: list[str]
    unused: list[str]


def load_incomplete(folder: Path, dtype: torch.dtype) -> LoadedModel:
    """Load a model of a folder that may lack weights, which are random then.

    Raises:
        UserError: if the folder doesn't contain a model that classifies images, or its config
            isn't that of its weights.
    """
    auto = AutoModelForImageClassification
    model, report = classifiers.load_incomplete(auto, folder, dtype, "images")
    if differing := sorted(report["mismatched_keys"]):
        name, stored, expected = differing[0]
        more = f" (and {len(differing) - 1} others differ)" if len(differing) > 1 else ""
        raise UserError(
            str(folder),
            f"its config.json isn't that of its weights: {name} has shape {tuple(stored)}, and "
            f"{tuple(expected)} by config.json{more}",
            "restore the config.json that was saved with them",
        )
    return LoadedModel(model, sorted(report["missing_keys"]), sorted(report["unexpected_keys"]))
