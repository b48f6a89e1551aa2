"""Choose the attention implementation of a run."""

import torch
from transformers import PreTrainedModel

from moray.config.schema import Train
from moray.errors import UserError, first_line
from moray.model.attention import FLEX, VARLEN, fault_of_kernel
from moray.train.engine.gpu_only import needs_gpu

_NAMES = {"eager": "eager", "sdpa": "sdpa", "varlen": VARLEN, "flex": FLEX}

# When compiled, plain attention on a CPU is faster than PyTorch's own kernel, whose backward pass
# is slow. But it keeps the scores of all pairs of tokens in memory, so rows have to be short.
_PLAIN_ATTENTION_TOKENS = 512
# FlashAttention's kernels need an Ampere GPU or a later one.
_OLDEST_CAPABILITY = (8, 0)


def choose_attention(
    model: PreTrainedModel,
    settings: Train,
    device: torch.device,
    row_length: int | None,
    compiled: bool,
) -> str | None:
    """`eager`, `sdpa`, `varlen` or `flex`; None for the default of transformers.

    Args:
        model: before it is moved to its device.
        settings: the `train` section, whose `precision` isn't `auto`.
        device: device of the run.
        row_length: tokens per row; None if rows aren't sequences.
        compiled: whether blocks are compiled.

    Raises:
        UserError: if the device or the model doesn't support what the config asks for.
    """
    wanted = settings.attention
    if wanted in ("eager", "sdpa"):
        return wanted
    if device.type == "cpu":
        if wanted != "auto":
            raise needs_gpu("train.attention", wanted)
        short = row_length is not None and row_length <= _PLAIN_ATTENTION_TOKENS
        return "eager" if compiled and short else None
    if wanted == "auto":
        # On an H200, `varlen` was 4 % faster and `flex` 1 %; see docs/performance.md.
        return None
    fault = fault_of_kernel(model, _NAMES[wanted])
    if wanted == "varlen":
        fault = fault or _fault_of_device(settings, device)
    if fault:
        raise UserError(
            "train.attention",
            f"{wanted} can't be used with this {model.config.model_type} model: {fault}",
            "set it to auto or sdpa",
        )
    return wanted


def use_attention(model: PreTrainedModel, kind: str | None) -> None:
    """Set the attention implementation that `choose_attention` returned.

    Raises:
        UserError: if the architecture doesn't support it.
    """
    if kind is None:
        return
    try:
        model.set_attn_implementation(_NAMES[kind])
    except ValueError as error:
        raise UserError(
            "train.attention",
            f"{kind} can't be used with this model ({first_line(error)})",
            "set it to auto",
        ) from error


def _fault_of_device(settings: Train, device: torch.device) -> str | None:
    if settings.precision != "bf16":
        return "it is trained in fp32, but the kernel computes in bf16"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < _OLDEST_CAPABILITY:
        return "the GPU is too old for FlashAttention"
    return None
