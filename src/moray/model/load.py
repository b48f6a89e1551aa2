"""Loading a causal language model, and what training on packed rows takes for granted."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedModel,
)

from moray.errors import UserError
from moray.model.folder import whole_model_and_adapters
from moray.model.size import num_quantized

_FOUR_BITS = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)


def load_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    in_4bit: bool = False,
) -> PreTrainedModel:
    """The model of a folder, in evaluation mode.

    The folder holds a whole model as transformers saves it, or an adapter that a run exported
    alone, which is merged into its base, in fp32, before the weights are converted. Code and
    pickles in a folder are never run.

    Args:
        folder: the folder.
        dtype: type of the weights.
        device: where the weights are put.
        in_4bit: whether the linear layers are held in 4-bit NormalFloat instead.

    Raises:
        UserError: if the folder holds no such model, or only a part of its weights, or an adapter
            whose base is missing or has changed, or one that would have to be quantized.
    """
    whole, adapters = whole_model_and_adapters(folder)
    if not adapters:
        return _whole_model(whole, dtype, in_4bit).to(device)
    if in_4bit:
        raise UserError(
            "adapter.quantize_base",
            f"{folder} holds an adapter alone, which can't be merged into 4-bit weights",
            "set export.merge_adapter: true in the run it comes from",
        )
    # PEFT takes a while to import.
    from moray.model.adapter import merged

    model = _whole_model(whole, torch.float32, in_4bit=False)
    for adapter in adapters:
        model = merged(model, adapter)
    return model.to(device, dtype).eval()


def _whole_model(folder: Path, dtype: torch.dtype, in_4bit: bool) -> PreTrainedModel:
    model: PreTrainedModel
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
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
            f"4bit needs a library that is missing ({str(error).splitlines()[0]})",
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


def empty_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model that `load_model` gives, without its weights, on PyTorch's `meta` device."""
    folder, _ = whole_model_and_adapters(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (OSError, ValueError, ImportError) as error:
        raise _no_model(folder, error) from error
    return model.eval()


def _no_model(folder: Path, error: Exception) -> UserError:
    first = str(error).partition("\n")[0]
    return UserError(str(folder), f"got no causal language model ({first})", "check the folder")


@torch.no_grad()
def check_isolation(model: PreTrainedModel) -> None:
    """Make sure that documents packed into a row don't see each other.

    Whether `position_ids` that restart keep attention inside documents depends on the model's
    architecture; where they don't, packed training would silently leak.

    Raises:
        UserError: if the second of two documents comes out differently than alone.
    """
    tokens = torch.arange(12, device=model.device) % model.config.get_text_config().vocab_size
    first, other, second = tokens.view(3, 1, 4)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]], device=model.device)

    def logits(*documents: Tensor) -> Tensor:
        inputs = torch.cat(documents, dim=1)
        there = positions[:, : inputs.shape[1]]
        whole: Tensor = model(input_ids=inputs, position_ids=there, use_cache=False).logits
        return whole[:, -4:].float()

    packed, beside_other, alone = logits(first, second), logits(other, second), logits(second)
    # Rows of one length are computed alike; those of another differ by the rounding of the type
    # that is computed in.
    in_fp32 = model.dtype == torch.float32 and not num_quantized(model)
    rounding = 1e-3 if in_fp32 else 0.1
    if not (
        torch.allclose(packed, beside_other, rtol=1e-3, atol=1e-4)
        and torch.allclose(packed, alone, rtol=rounding, atol=rounding * float(alone.abs().max()))
    ):
        raise UserError(
            model.config.model_type,
            "got an architecture in which packed documents see each other",
            "choose one that builds its attention mask from position_ids, such as Llama or Qwen",
        )


def check_length(model: PreTrainedModel, block_size: int) -> None:
    """Make sure that a row is no longer than what the model is meant for.

    Raises:
        UserError: if it is.
    """
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", block_size)
    if block_size > longest:
        raise UserError(
            "data.block_size",
            f"got {block_size}, expected at most the {longest} positions of the model",
            "lower it or choose another model",
        )
