"""Models that classify images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
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

# What transformers raises for folders that it can't load: files that are missing or damaged, other
# kinds of models, and values of a config that aren't possible.
_FAULTS = (
    *(OSError, ValueError, ImportError, SafetensorError, StrictDataclassError),
    *(ArithmeticError, LookupError, RuntimeError, TypeError),
)


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
    if missing:
        raise UserError(
            str(folder),
            f"{len(missing)} weights are missing, e.g. {missing[0]}",
            "use the folder of a complete model that classifies images",
        )
    return model.to(device).eval()


def empty_classifier(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model that `load_classifier` returns, without weights, on PyTorch's `meta` device."""
    try:
        config = AutoConfig.from_pretrained(folder, **LOCAL)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForImageClassification.from_config(
                config, dtype=dtype
            )
    except _FAULTS as error:
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
    """The names of a model's classes, in order; none if its config doesn't name them."""
    names: dict[int, str] = config.id2label or {}
    return [names[number] for number in sorted(names)]


def labels(names: Sequence[str]) -> dict[str, Any]:
    """The entries of a model's config that name its classes."""
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }


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
    try:
        model, report = AutoModelForImageClassification.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            **LOCAL,
            # The report names what doesn't fit; the error of transformers doesn't.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except _FAULTS as error:
        raise _no_model(folder, error) from error
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


def _no_model(folder: Path, error: Exception) -> UserError:
    # The first line of such an error only names the key.
    cause = error.__cause__ if isinstance(error, StrictDataclassError) else None
    return UserError(
        str(folder),
        f"can't load a model that classifies images ({first_line(cause or error)})",
        "check the folder",
    )
