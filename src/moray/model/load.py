"""Load causal language models, and check their maximum length."""

import sys
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from moray.config import extras
from moray.errors import UserError, first_line
from moray.model.folder import LOCAL, whole_model_and_adapters
from moray.model.forward import freeze_unused
from moray.model.quantization import Quantization
from moray.model.shapes import positions_of

# What transformers raises for a value in `config.json` that it can't use.
_FAULTS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    AssertionError,
    StrictDataclassError,
)
_COMPLETE = "use the folder of a complete causal language model"


def load_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    quantization: Quantization | None = None,
) -> PreTrainedModel:
    """Load a model from a folder, in evaluation mode.

    The folder contains a full model as saved by transformers, or only an adapter, as exported by a
    run. An adapter is merged into its base in fp32 before the weights are converted. Code and
    pickles in the folder are never run.

    Raises:
        UserError: if the folder doesn't contain a causal language model, some of its weights are
            missing, the base of an adapter is missing or has changed, or `quantization` is set
            for an adapter.
    """
    whole, adapters = whole_model_and_adapters(folder)
    if not adapters:
        return _whole_model(whole, dtype, quantization).to(device)
    if quantization:
        raise UserError(
            "adapter.quantize_base",
            f"{folder} contains only an adapter, which can't be merged into quantized weights",
            "set export.merge_adapter: true in the run it comes from",
        )
    # Importing PEFT takes a while.
    from moray.model.adapter import merged

    model = _whole_model(whole, torch.float32, None)
    for adapter in adapters:
        model = merged(model, adapter)
    convert(model, dtype)
    return model.to(device).eval()


def convert(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Convert what is stored of a model to a type, as if it were loaded in it.

    Some architectures keep weights in fp32, such as the biases that choose between experts. So are
    buffers that aren't stored: angles of rotary positions in bf16 would be wrong.
    """
    kept = model._get_dtype_plan(dtype)
    for name, value in model.state_dict(keep_vars=True).items():
        if value.is_floating_point() and not any(part in name for part in kept):
            value.data = value.data.to(dtype)


def _whole_model(
    folder: Path, dtype: torch.dtype, quantization: Quantization | None
) -> PreTrainedModel:
    model: PreTrainedModel
    extra = extras.part(extras.QUANTIZED[quantization.bits], "base") if quantization else None
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            **LOCAL,
            output_loading_info=True,
            # `check_loaded` refuses them, by name.
            ignore_mismatched_sizes=True,
            **(extra.keywords(quantization) if extra else {}),
        )
    except (*_FAULTS, SafetensorError) as error:
        raise _no_model(folder, error) from error
    except RuntimeError as error:
        # Its log has the names of those that transformers would join.
        if "conversion of the weights" not in str(error):
            raise
        raise UserError(
            str(folder),
            "the weights can't be joined to those of the model, since some are missing or have "
            "other shapes",
            _COMPLETE,
        ) from error
    except ImportError as error:
        if not quantization:
            # A config.json can require another library.
            raise _no_model(folder, error) from error
        raise UserError(
            "adapter.quantize_base",
            f"{quantization.bits} needs a library that is missing ({first_line(error)})",
            "pip install 'moray[qlora]', or set it to null",
        ) from error
    check_loaded(model, report, folder)
    _check_tied(model, folder)
    if quantization and extra:
        extra.check_quantized(model, quantization.bits)
        extra.keep_layout(model)
    freeze_unused(model)
    return model.eval()


def check_loaded(model: PreTrainedModel, report: dict[str, Any], folder: Path) -> None:
    """Check that a model has all weights of its folder, and no others.

    transformers would use random weights for the missing ones and those of other shapes, and leave
    the others out.

    Args:
        report: what `from_pretrained` returns with `output_loading_info`.

    Raises:
        UserError: if it hasn't.
    """
    if others := sorted(report["mismatched_keys"]):
        name, stored, expected = others[0]
        raise UserError(
            str(folder),
            f"{len(others)} weights have other shapes than config.json says, e.g. {name}: "
            f"{tuple(stored)}, expected {tuple(expected)}",
            "use the config.json that was saved with the weights, or correct the sizes in it",
        )
    for key, problem in (("missing_keys", "are missing"), ("unexpected_keys", "aren't part of it")):
        if names := sorted(report[key]):
            raise UserError(
                str(folder),
                f"{len(names)} weights of a {model.config.model_type} model {problem}, e.g. "
                f"{names[0]}",
                _COMPLETE,
            )


def _check_tied(model: PreTrainedModel, folder: Path) -> None:
    """Check that input and output embeddings are one if the config says so.

    If the file has two that differ, transformers keeps both: another model than the config's.
    """
    output = model.get_output_embeddings()
    tied = model.config.get_text_config().tie_word_embeddings
    if tied and output is not None and output.weight is not model.get_input_embeddings().weight:
        raise UserError(
            str(folder),
            "config.json has tie_word_embeddings: true, but the input and output embeddings differ",
            "set it to false in config.json, or remove the output embedding from the weights",
        )


def empty_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model that `load_model` returns, without its weights, on PyTorch's `meta` device."""
    config = load_config(folder)
    with torch.device("meta"):
        model = built(config, folder, dtype)
    freeze_unused(model)
    return model.eval()


def built(config: PreTrainedConfig, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a folder's config, as its architecture initialises it.

    Raises:
        UserError: if it isn't a causal language model.
    """
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (*_FAULTS, ImportError) as error:
        raise _no_model(folder, error) from error
    return model


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration of the model that `load_model` returns.

    Raises:
        UserError: if the folder doesn't contain a causal language model.
    """
    whole, _ = whole_model_and_adapters(folder)
    config: PreTrainedConfig
    try:
        config = AutoConfig.from_pretrained(whole, **LOCAL)
    except (*_FAULTS, ImportError) as error:
        raise _no_model(folder, error) from error
    return config


def _no_model(folder: Path, error: Exception) -> UserError:
    what = first_line(error)
    if isinstance(error, KeyError):
        what = f"config.json has {what}, which transformers doesn't know"
    return UserError(
        str(folder), f"can't load a causal language model ({what})", "check the folder"
    )


def longest_sequence(config: PreTrainedConfig) -> int:
    """Maximum number of tokens for a model; `sys.maxsize` for architectures without a limit."""
    return positions_of(config.to_dict()) or sys.maxsize


def check_length(model: PreTrainedModel, length: int) -> None:
    """Check that a sequence isn't longer than the model's maximum length.

    Raises:
        UserError: if it is.
    """
    longest = longest_sequence(model.config)
    if length > longest:
        raise UserError(
            "data.block_size",
            f"makes sequences of {length} tokens, expected at most {longest}, the model's maximum "
            "length",
            "lower it or choose another model",
        )
