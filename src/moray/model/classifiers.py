"""Models of any modality with an output layer for classes: how transformers loads and names them.

What they classify is said by `what`, such as `images`, for errors.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from moray.errors import UserError, first_line
from moray.model.folder import LOCAL

# What transformers raises for folders that it can't load: files that are missing or damaged, other
# kinds of models, and values of a config that aren't possible.
_FAULTS = (
    *(OSError, ValueError, ImportError, SafetensorError, StrictDataclassError),
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError),
)


def load_incomplete(
    auto: Any, folder: Path, dtype: torch.dtype, what: str, config: PreTrainedConfig | None = None
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model that may lack weights, which are random then; and transformers' report.

    Code and pickles in the folder are never run.

    Args:
        auto: the class of transformers for such models.
        config: replaces the folder's.

    Raises:
        UserError: if the folder doesn't contain such a model.
    """
    own = {} if config is None else {"config": config}
    try:
        model, report = auto.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            **LOCAL,
            **own,
            # The report names what doesn't fit; the error of transformers doesn't.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except _FAULTS as error:
        raise _no_model(folder, what, error) from error
    return model, report


def check_complete(folder: Path, missing: Sequence[str], what: str) -> None:
    """Check that no weights were missing.

    Raises:
        UserError: if some were.
    """
    if missing:
        raise UserError(
            str(folder),
            f"{len(missing)} weights are missing, e.g. {missing[0]}",
            f"use the folder of a complete model that classifies {what}",
        )


def config_of(folder: Path, what: str) -> Any:
    """The config of the model in a folder.

    Raises:
        UserError: if transformers doesn't know it.
    """
    try:
        return AutoConfig.from_pretrained(folder, **LOCAL)
    except _FAULTS as error:
        raise _no_model(folder, what, error) from error


def built(auto: Any, config: Any, folder: Path, dtype: torch.dtype, what: str) -> PreTrainedModel:
    """The model of a config, as its architecture initialises it.

    Raises:
        UserError: if it isn't one of those that classify.
    """
    try:
        model: PreTrainedModel = auto.from_config(config, dtype=dtype)
    except _FAULTS as error:
        raise _no_model(folder, what, error) from error
    return model


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


def _no_model(folder: Path, what: str, error: Exception) -> UserError:
    # The first line of such an error only names the key.
    cause = error.__cause__ if isinstance(error, StrictDataclassError) else None
    return UserError(
        str(folder),
        f"can't load a model that classifies {what} ({first_line(cause or error)})",
        "check the folder",
    )
