"""Loading a causal language model, and the length that it is meant for."""

import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedModel,
)

from moray.errors import UserError

_FOUR_BITS = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)


def load_model(folder: Path, in_4bit: bool = False) -> PreTrainedModel:
    """The model of a Hugging Face folder in fp32, in evaluation mode, on the CPU.

    Code and pickles in the folder are never run.

    Args:
        folder: where it lies.
        in_4bit: whether its linear layers are held in 4-bit NormalFloat instead, on a GPU.

    Raises:
        UserError: if the folder holds no such model, or only a part of its weights.
    """
    model: PreTrainedModel
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            # Without it, transformers asks on the terminal whether to run a folder's code.
            trust_remote_code=False,
            output_loading_info=True,
            quantization_config=_FOUR_BITS if in_4bit else None,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise _no_model(folder, error) from error
    except ImportError as error:
        if not in_4bit:
            # A config.json can name what only another library has.
            raise _no_model(folder, error) from error
        raise UserError(
            "adapter.quantize_base",
            f"got 4bit, which needs a library ({str(error).splitlines()[0]})",
            "pip install -e '.[qlora]', or set it to null",
        ) from error
    if missing := sorted(report["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise UserError(
            str(folder),
            f"got no weights for {missing[0]} and {len(missing) - 1} more",
            "give the folder of a whole causal language model",
        )
    return model.eval()


def empty_model(folder: Path) -> PreTrainedModel:
    """The model of a Hugging Face folder without its weights, on PyTorch's `meta` device."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except (OSError, ValueError, ImportError) as error:
        raise _no_model(folder, error) from error
    return model.eval()


def _no_model(folder: Path, error: Exception) -> UserError:
    first = str(error).partition("\n")[0]
    return UserError(str(folder), f"got no causal language model ({first})", "check the folder")


def longest_sequence(model: PreTrainedModel) -> int:
    """Tokens that the model is meant for at most; `sys.maxsize` for architectures without limit."""
    config = model.config.get_text_config()
    longest: int = getattr(config, "max_position_embeddings", sys.maxsize)
    return longest


def check_length(model: PreTrainedModel, block_size: int) -> None:
    """Make sure that a row is no longer than what the model is meant for.

    Raises:
        UserError: if it is.
    """
    longest = longest_sequence(model)
    if block_size > longest:
        raise UserError(
            "data.block_size",
            f"got {block_size}, expected at most the {longest} positions of the model",
            "lower it or choose another model",
        )
