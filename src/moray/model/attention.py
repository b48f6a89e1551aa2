"""Attention over packed rows on GPUs, without a mask over all pairs of tokens.

Both variants are registered by transformers' public interfaces. Neither has a backward pass on CPUs
in PyTorch 2.13.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from moray.errors import first_line
from moray.model.forward import decoder_of

# Names in transformers of what `train.attention` calls `varlen` and `flex`.
VARLEN, FLEX = "packed_varlen", "packed_flex"
_PROBE = "packed_probe"

# FlashAttention's kernels need an Ampere GPU or a later one.
_OLDEST_CAPABILITY = (8, 0)
# The limit of FlashAttention.
_LARGEST_HEAD = 256
# The limit of PyTorch's flex attention on GPUs, up to 2.13 at least.
_SMALLEST_FLEX_HEAD = 16
# Features of some architectures' attention that the kernel lacks, by their argument.
_EXTRAS = {
    "softcap": "its attention scores are capped",
    "s_aux": "its attention has sinks",
    "position_bias": "its attention scores have a bias",
}


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    cu_seqlens: Tensor,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each document, with PyTorch's FlashAttention.

    Args:
        query: shape (rows, heads, tokens, width).
        key: shape (rows, key heads, tokens, width).
        value: shape (rows, key heads, tokens, width), fp16 or bf16; its type is used throughout.
        scaling: factor for the scores.
        sliding_window: number of tokens that a token attends to, including itself; None for all
            tokens before it.
        cu_seqlens: see `TokenBatch`.

    Returns:
        The output, shape (rows, tokens, heads, width), and None for the scores.
    """
    from torch.nn.attention.varlen import varlen_attn

    rows, heads, length, width = query.shape
    # Under autocast, rotary embeddings return fp32, and autocast doesn't cover this kernel.
    query, key, value = (
        states.transpose(1, 2).reshape(rows * length, -1, width).to(value.dtype)
        for states in (query, key, value)
    )
    grouped: dict[str, Any] = {}
    if key.shape[1] != heads:
        if _takes_grouped_heads():
            grouped["enable_gqa"] = True
        else:
            key, value = (s.repeat_interleave(heads // s.shape[1], dim=1) for s in (key, value))
    before = -1 if sliding_window is None else sliding_window - 1
    output: Any = varlen_attn(
        query,
        key,
        value,
        cu_seqlens,
        cu_seqlens,
        # An upper bound: computing the longest document would wait for the GPU.
        length,
        length,
        scale=scaling,
        window_size=(before, 0),
        **grouped,
    )
    states: Tensor = output.view(rows, length, heads, width)
    return states, None


@cache
def _takes_grouped_heads() -> bool:
    """Whether `varlen_attn` supports fewer key heads than query heads; PyTorch 2.11 doesn't."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def flex_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' flex attention, computed in the type of the values.

    Under autocast, rotary embeddings return fp32, and not all versions of PyTorch support autocast
    for this kernel. Arguments and result are those of `varlen_attention`, with a block mask.
    """
    attend = ALL_ATTENTION_FUNCTIONS["flex_attention"]
    query, key = query.to(value.dtype), key.to(value.dtype)
    output, sums = attend(module, query, key, value, *others, **named)
    return output, sums


AttentionInterface.register(VARLEN, varlen_attention)
AttentionInterface.register(FLEX, flex_attention)
AttentionMaskInterface.register(FLEX, ALL_MASK_ATTENTION_FUNCTIONS["flex_attention"])


def fault_of_kernel(model: PreTrainedModel, name: str) -> str | None:
    """The reason why `VARLEN` or `FLEX` can't compute a model's attention; None if it can.

    The model may be on any device, including `meta`.
    """
    try:
        calls = _calls_of_attention(model)
    except ValueError as error:
        # Other layers of hybrid models need libraries of their own for `cu_seqlens`.
        return first_line(error)
    if not calls:
        return "its architecture doesn't use the attention interface of transformers"
    if any(call.get("dropout") for call in calls):
        return "its attention has dropout (set attention_dropout or attn_pdrop to 0 in its config)"
    if name == FLEX:
        if any(min(call["widths"]) < _SMALLEST_FLEX_HEAD for call in calls):
            return f"its heads are narrower than {_SMALLEST_FLEX_HEAD}"
        return None
    for call in calls:
        for argument, does in _EXTRAS.items():
            if call.get(argument) is not None:
                return does
        if "cu_seqlens" not in call:
            return "its architecture doesn't pass on where documents begin"
        if call["widths"] != {call["width"]} or call["width"] > _LARGEST_HEAD:
            return f"its heads are wider than {_LARGEST_HEAD}, or not all of one width"
    config = model.config.get_text_config()
    if getattr(config, "attention_chunk_size", None) is not None:
        return "its attention is chunked"
    types = getattr(config, "layer_types", None)
    if types is None:
        windows = len(calls) if getattr(config, "sliding_window", None) else 0
    else:
        windows = list(types).count("sliding_attention")
    if windows != sum(call.get("sliding_window") is not None for call in calls):
        return "its architecture doesn't pass on which layers have a sliding window"
    return None


def fault_of_varlen(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> str | None:
    """The reason why `varlen` can't compute in a type on a GPU; see `fault_of_kernel`."""
    if dtype not in (torch.bfloat16, torch.float16):
        return "it computes in fp32, but the kernel only in bf16"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < _OLDEST_CAPABILITY:
        return "the GPU is too old for FlashAttention"
    return fault_of_kernel(model, VARLEN)


@contextmanager
def varlen_if_possible(model: PreTrainedModel) -> Iterator[str | None]:
    """During the body, a model on a GPU computes its attention by `varlen`, if it can.

    Yields:
        `varlen`, or None if the model computes as before.
    """
    device = model.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else model.dtype
    if device == "cpu" or fault_of_varlen(model, dtype, model.device):
        yield None
        return
    before = model.config._attn_implementation
    model.set_attn_implementation(VARLEN)
    try:
        yield "varlen"
    finally:
        model.set_attn_implementation(before)


def _calls_of_attention(model: PreTrainedModel) -> list[dict[str, Any]]:
    """The arguments of each attention layer in a training step, and the widths of its heads."""
    calls: list[dict[str, Any]] = []

    def probe(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        **named: Any,
    ) -> tuple[Tensor, None]:
        widths = {states.shape[-1] for states in (query, key, value)}
        calls.append({**named, "width": query.shape[-1], "widths": widths})
        output = query.new_zeros(*query.shape[:-1], value.shape[-1], dtype=value.dtype)
        return output.transpose(1, 2), None

    AttentionInterface.register(_PROBE, probe)
    before, training = model.config._attn_implementation, model.training
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    ends = torch.tensor([0, 1, 2], dtype=torch.int32, device=model.device)
    try:
        model.set_attn_implementation(_PROBE)
        # Dropout is only applied in training mode.
        model.train()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            decoder_of(model)(
                input_ids=tokens,
                position_ids=torch.zeros_like(tokens),
                use_cache=False,
                cu_seqlens=ends,
            )
    finally:
        model.train(training)
        model.set_attn_implementation(before)
    return calls
