"""Models that tell the classes of texts apart, or predict a number of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from moray.errors import UserError, first_line
from moray.model.folder import LOCAL, whole_model_and_adapters
from moray.model.load import convert

# What transformers raises for folders that it can't load.
_FAULTS = (
    *(OSError, ValueError, ImportError, SafetensorError, StrictDataclassError),
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError),
)


def load(
    folder: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> PreTrainedModel:
    """Load a model in evaluation mode; code and pickles in its folder are never run.

    A folder that has only an adapter, as a run exports it, is merged into its base in fp32.

    Raises:
        UserError: if the folder doesn't contain a model that classifies texts, or some of its
            weights are missing.
    """
    whole, adapters = whole_model_and_adapters(folder)
    model, report = load_incomplete(whole, None, torch.float32 if adapters else dtype)
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            str(folder),
            f"{len(missing)} weights are missing, e.g. {missing[0]}",
            "use the folder of a complete model that classifies texts",
        )
    if adapters:
        # Importing PEFT takes a while.
        from moray.model.adapter import merged

        for adapter in adapters:
            model = merged(model, adapter)
        convert(model, dtype)
    return model.to(device).eval()


def load_incomplete(
    folder: Path, config: Any, dtype: torch.dtype
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model that may lack weights, which are random then; and which ones.

    Raises:
        UserError: if transformers can't load the folder as a model that classifies texts.
    """
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            use_safetensors=True,
            **LOCAL,
        )
    except _FAULTS as error:
        raise _no_model(folder, error) from error
    return model, report


def empty(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model that `load` returns, without weights, on PyTorch's `meta` device."""
    config = config_of(folder)
    with torch.device("meta"):
        return built(config, folder, dtype).eval()


def built(config: Any, folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of a config, as its architecture initialises it.

    Raises:
        UserError: if transformers has none that classifies texts.
    """
    try:
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config, dtype=dtype)
    except _FAULTS as error:
        raise _no_model(folder, error) from error
    return model


def config_of(folder: Path) -> Any:
    """The config of the model in a folder, or of the base of its adapter."""
    try:
        return AutoConfig.from_pretrained(whole_model_and_adapters(folder)[0], **LOCAL)
    except _FAULTS as error:
        raise _no_model(folder, error) from error


def names_of(config: Any) -> list[str]:
    """The names of a model's classes, in order; numbers where transformers made up names."""
    names: dict[int, str] = config.id2label or {}
    return [str(names[number]).removeprefix("LABEL_") for number in sorted(names)]


def set_labels(config: Any, problem_type: str, names: Sequence[str]) -> None:
    """Write a problem into a model's config, and the names of its classes in their order."""
    config.problem_type = problem_type
    if names:
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
    else:
        config.num_labels = 1


def _no_model(folder: Path, error: Exception) -> UserError:
    cause = error.__cause__ if isinstance(error, StrictDataclassError) else None
    return UserError(
        str(folder),
        f"can't load a model that classifies texts ({first_line(cause or error)})",
        "check the folder, or choose another model",
    )
