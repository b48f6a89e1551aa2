"""Replace the quantized weights of a base model by plain ones."""

import json
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    FineGrainedFP8Config,
    Mxfp4Config,
    PreTrainedModel,
)

from moray.errors import UserError, first_line
from moray.model.folder import LOCAL
from moray.model.load import check_loaded

# Methods that transformers undoes while it loads the weights.
_WHILE_LOADING = {"fp8": FineGrainedFP8Config, "mxfp4": Mxfp4Config}


def dequantize(folder: Path, method: str) -> None:
    """Replace a folder's quantized weights by plain ones, in the type that its config names.

    Raises:
        UserError: if the folder doesn't contain such a model.
    """
    # An explicit None would have transformers take the weights as they are stored for plain ones.
    how: dict[str, Any] = {}
    if method == "fp8":
        _dequantize_ragged(folder)
    if method in _WHILE_LOADING:
        how["quantization_config"] = _WHILE_LOADING[method](dequantize=True)
    loaded: PreTrainedModel
    try:
        loaded, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype="auto",
            use_safetensors=True,
            **how,
            **LOCAL,
            output_loading_info=True,
            # `check_loaded` refuses them, by name.
            ignore_mismatched_sizes=True,
        )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise UserError(
            str(folder),
            f"can't load weights quantized by {method} ({first_line(error)})",
            "pip install 'moray[qlora]'" if method == "bitsandbytes" else "check the folder",
        ) from error
    check_loaded(loaded, report, folder)
    if not how:
        loaded.dequantize()
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    # Another object, because transformers saves this one as it was quantized.
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(loaded.config, dtype=loaded.dtype)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    model.save_pretrained(folder)


def _dequantize_ragged(folder: Path) -> None:
    """Dequantize the weights in FP8 that end in a part of a block; their scale becomes 1.

    transformers divides rows by scales, so it takes all blocks of a weight for equally large. With
    blocks of 128, those of 192 rows would be 96 rows.
    """
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    if not (block := config.get("weight_block_size")):
        return
    new_tensors: dict[Path, dict[str, Tensor]] = defaultdict(dict)
    with ExitStack() as files:
        shards: dict[Path, Any] = {
            file: files.enter_context(safe_open(file, framework="pt"))
            for file in folder.glob("*.safetensors")
        }
        where = {name: file for file, weights in shards.items() for name in weights.keys()}  # noqa: SIM118 - it is no mapping
        for name, file in where.items():
            if (scale := f"{name}_scale_inv") not in where:
                continue
            rows, columns = shards[file].get_slice(name).get_shape()[-2:]
            sides = zip((rows, columns), block, strict=True)
            if all(side <= part or side % part == 0 for side, part in sides):
                continue
            scales = shards[where[scale]].get_tensor(scale)
            of_rows = scales.float().repeat_interleave(block[0], -2)[..., :rows, :]
            of_each = of_rows.repeat_interleave(block[1], -1)[..., :columns]
            weight = shards[file].get_tensor(name).float() * of_each
            new_tensors[file][name] = weight.bfloat16()
            new_tensors[where[scale]][scale] = torch.ones_like(scales[..., :1, :1])
    for file, tensors in new_tensors.items():
        save_file(load_file(file) | tensors, file, {"format": "pt"})
