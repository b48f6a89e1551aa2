"""Load causal language models, and check their maximum length."""

import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from moray.errors import UserError, first_line
from moray.model.folder import LOCAL, whole_model_and_adapters
from moray.model.forward import freeze_unused
from moray.model.quantization import Quantization, check_quantized, keep_layout
from moray.model.shapes import positions_of


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
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            **LOCAL,
            output_loading_info=True,
            **(quantization.keywords() if quantization else {}),
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise _no_model(folder, error) from error
    except ImportError as error:
        if not quantization:
            # A config.json can require another library.
            raise _no_model(folder, error) from error
        raise UserError(
            "adapter.quantize_base",
            f"{quantization.bits} needs a library that is missing ({first_line(error)})",
            "pip install 'moray[qlora]', or set it to null",
        ) from error
    # transformers would use random weights for the missing ones, and leave the others out.
    for key, problem in (("missing_keys", "are missing"), ("unexpected_keys", "aren't part of it")):
        if names := sorted(report[key]):
            raise UserError(
                str(folder),
                f"{len(names)} weights of a {model.config.model_type} model {problem}, e.g. "
                f"{names[0]}",
                "use the folder of a complete causal language model",
            )
    _check_tied(model, folder)
    if quantization:
        check_quantized(model, quantization.bits)
        keep_layout(model)
    freeze_unused(model)
    return model.eval()


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
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (OSError, ValueError, ImportError) as error:
        raise _no_model(folder, error) from error
    freeze_unused(model)
    return model.eval()


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration of the model that `load_model` returns.

    Raises:
        UserError: if the folder doesn't contain a causal language model.
    """
    whole, _ = whole_model_and_adapters(folder)
    config: PreTrainedConfig
    try:
        config = AutoConfig.from_pretrained(whole, **LOCAL)
    except (OSError, ValueError, ImportError) as error:
        raise _no_model(folder, error) from error
    return config


def _no_model(folder: Path, error: Exception) -> UserError:
    return UserError(
        str(folder), f"can't load a causal language model ({first_line(error)})", "check the folder"
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
