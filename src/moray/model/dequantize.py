"""Replace the quantized weights of a base model by plain ones."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    FineGrainedFP8Config,
    Mxfp4Config,
    PreTrainedModel,
)

from moray.errors import UserError, first_line
from moray.model.folder import LOCAL

# Methods that transformers undoes while it loads the weights.
_WHILE_LOADING = {"fp8": FineGrainedFP8Config, "mxfp4": Mxfp4Config}


def dequantize(folder: Path, method: str) -> None:
    """Write the weights of a quantized model as plain ones, in the type that its config names.

    Args:
        folder: Hugging Face folder; its weights and config are replaced.
        method: one of `DEQUANTIZABLE`.

    Raises:
        UserError: if the folder doesn't contain such a model.
    """
    # An explicit None would have transformers take the weights as they are stored for plain ones.
    how: dict[str, Any] = {}
    if method in _WHILE_LOADING:
        how["quantization_config"] = _WHILE_LOADING[method](dequantize=True)
    loaded: PreTrainedModel
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", use_safetensors=True, **how, **LOCAL
        )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise UserError(
            str(folder),
            f"can't load weights quantized by {method} ({first_line(error)})",
            "pip install 'moray[qlora]'" if method == "bitsandbytes" else "check the folder",
        ) from error
    if not how:
        loaded.dequantize()
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    # In another object, because transformers saves this one as it was quantized.
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(loaded.config, dtype=loaded.dtype)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    model.save_pretrained(folder)
