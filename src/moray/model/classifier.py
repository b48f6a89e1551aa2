"""Models that classify images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    PreTrainedConfig,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from moray.errors import UserError, first_line
from moray.model.folder import LOCAL


def new_classifier(
    cfg: dict[str, Any], image_size: int, label_names: Sequence[str]
) -> PreTrainedModel:
    """A randomly initialised model of a `scratch-vision` section, for images of that side."""
    common = {"num_channels": cfg["num_channels"], **_labels(label_names)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cfg["seed"])
        if cfg["architecture"] == "resnet":
            resnet = ResNetConfig(layer_type="basic", **cfg["resnet"], **common)
            return ResNetForImageClassification(resnet)
        return ViTForImageClassification(ViTConfig(image_size=image_size, **cfg["vit"], **common))


def load_classifier(
    folder: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> PreTrainedModel:
    """Load a model from a folder, in evaluation mode; code and pickles in it are never run.

    Raises:
        UserError: if the folder doesn't contain a model that classifies images, or some of its
            weights are missing.
    """
    model, missing = _loaded(folder, dtype)
    if missing:
        raise UserError(
            str(folder),
            f"{len(missing)} weights are missing, e.g. {missing[0]}",
            "use the folder of a complete model that classifies images",
        )
    return model.to(device).eval()


def classifier_for(folder: Path, label_names: Sequence[str], seed: int) -> PreTrainedModel:
    """Load a model for these classes; if its own differ, it gets an output layer drawn by the seed.

    Raises:
        UserError: if the folder doesn't contain a model that classifies images.
    """
    model, missing = _loaded(folder, torch.float32)
    name, head = _head(model, folder)
    if others := [key for key in missing if not key.startswith(f"{name}.")]:
        raise UserError(
            str(folder), f"the weights are missing for {others[0]}", "use a complete model"
        )
    if missing or names_of(model.config) != list(label_names):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            new = nn.Linear(head.in_features, len(label_names), head.bias is not None)
        model.set_submodule(name, new)
        for key, value in _labels(label_names).items():
            setattr(model.config, key, value)
    # Of a base with several classes an image, pipelines would go on to give sigmoids.
    model.config.problem_type = "single_label_classification"
    return model.eval()


def empty_classifier(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model that `load_classifier` returns, without weights, on PyTorch's `meta` device."""
    try:
        config = AutoConfig.from_pretrained(folder, **LOCAL)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForImageClassification.from_config(
                config, dtype=dtype
            )
    except (OSError, ValueError, ImportError) as error:
        raise _no_model(folder, error) from error
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


def names_of(config: PreTrainedConfig) -> list[str]:
    """The names of a model's classes, in order."""
    return [config.id2label[number] for number in sorted(config.id2label)]


def _labels(names: Sequence[str]) -> dict[str, Any]:
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }


def _loaded(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, list[str]]:
    """A model, and the names of the weights that its folder lacks."""
    try:
        model, report = AutoModelForImageClassification.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            **LOCAL,
            output_loading_info=True,
        )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise _no_model(folder, error) from error
    return model, sorted(report["missing_keys"])


def _head(model: PreTrainedModel, folder: Path) -> tuple[str, nn.Linear]:
    """The output layer: the last linear layer with an output for each class."""
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == model.config.num_labels
    ]
    if not found:
        raise UserError(
            str(folder),
            f"can't find the output layer of this {model.config.model_type} model",
            "choose another model",
        )
    return found[-1]


def _no_model(folder: Path, error: Exception) -> UserError:
    return UserError(
        str(folder),
        f"can't load a model that classifies images ({first_line(error)})",
        "check the folder",
    )
