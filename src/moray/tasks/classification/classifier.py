"""Models that tell the classes of texts or of their words apart, or predict a number of a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from moray.model import classifiers
from moray.model.folder import whole_model_and_adapters
from moray.model.load import convert
from moray.tasks.classification.survey import OF_WORDS

_WHAT = "texts"
_ARCHITECTURE = "ForTokenClassification"


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
    classifiers.check_complete(folder, sorted(report["missing_keys"]), _WHAT)
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
    """See `classifiers.load_incomplete`."""
    auto = _auto(config_of(folder) if config is None else config)
    return classifiers.load_incomplete(auto, folder, dtype, _WHAT, config)


def is_of_words(config: Any) -> bool:
    """Whether a model tells the classes of words apart."""
    return any(name.endswith(_ARCHITECTURE) for name in config.architectures or ())


def _auto(config: Any) -> Any:
    """The class of transformers by which a model is loaded."""
    of_words = is_of_words(config)
    return AutoModelForTokenClassification if of_words else AutoModelForSequenceClassification


def empty(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model that `load` returns, without weights, on PyTorch's `meta` device."""
    config = config_of(folder)
    with torch.device("meta"):
        return built(config, folder, dtype).eval()


def built(config: Any, folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """See `classifiers.built`."""
    return classifiers.built(_auto(config), config, folder, dtype, _WHAT)


def config_of(folder: Path) -> Any:
    """The config of the model in a folder, or of the base of its adapter."""
    return classifiers.config_of(whole_model_and_adapters(folder)[0], _WHAT)


def names_of(config: Any) -> list[str]:
    """The names of a model's classes, in order; numbers where transformers made up names."""
    return [str(name).removeprefix("LABEL_") for name in classifiers.names_of(config)]


def set_kind(config: Any, of_words: bool) -> None:
    """Have a model's config say that it is of words, or of texts, whatever model it was of."""
    config.architectures = [_ARCHITECTURE] if of_words else []


def set_labels(config: Any, problem_type: str, names: Sequence[str]) -> None:
    """Write a problem into a model's config, and the names of its classes in their order."""
    set_kind(config, problem_type == OF_WORDS)
    # Names of transformers' losses; that of words has none.
    config.problem_type = None if problem_type == OF_WORDS else problem_type
    if names:
        for key, value in classifiers.labels(names).items():
            setattr(config, key, value)
    else:
        config.num_labels = 1
