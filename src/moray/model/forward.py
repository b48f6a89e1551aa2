"""How a model's forward pass runs: its precision, its blocks, the compiler's options."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from moray.workers.collectives import from_any_worker


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The autocast context for a `precision` of the config; weights stay fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=resolve(precision, device) == "bf16")


def common_precision(precision: str, device: torch.device) -> str:
    """The precision for all workers: `bf16` if `precision` resolves to it on each, else `fp32`."""
    return (
        from_any_worker(lambda: None if resolve(precision, device) == "bf16" else "fp32") or "bf16"
    )


def resolve(precision: str, device: torch.device) -> str:
    """Resolve `auto` to `bf16` or `fp32` for a device; other values are returned as they are."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    capabilities = torch.cpu.get_capabilities()
    computes = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return "bf16" if computes else "fp32"


def blocks_of(model: PreTrainedModel) -> list[nn.Module]:
    """A model's outermost transformer blocks, in order; they are compiled and sharded one by one.

    Empty if the architecture doesn't name its block classes. Of a model that also takes images,
    only those of its decoder, because text doesn't pass the others.
    """
    names = set(model._no_split_modules or [])
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in _body(model).modules():
        # FSDP2 derives a class from that of each block.
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if kinds & names and module not in inside:
            blocks.append(module)
            inside.update(module.modules())
    return blocks


def _body(model: PreTrainedModel) -> nn.Module:
    """A model without its output layer; of one that also takes images, what text passes."""
    has_text = model.get_output_embeddings() is not None
    return decoder_of(model) if has_text else model


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """What comes before a language model's output layer.

    For Llama 4, transformers' `get_decoder` returns the model with its output layer.
    """
    decoder: nn.Module = model.get_decoder()
    if isinstance(decoder, PreTrainedModel) and decoder.get_output_embeddings() is not None:
        decoder = next(child for child in decoder.children() if isinstance(child, PreTrainedModel))
    return decoder


def compile_model(model: PreTrainedModel, whole: bool) -> None:
    """Compile a model, but for its output layer, on its first call.

    Compiled as a whole, it lets a slow host call the GPU less often. Compiled block by block, it
    takes a fifth of the time to compile, because the blocks share their code.
    """
    for module in [_body(model)] if whole else blocks_of(model):
        module.compile(dynamic=False, options=compiler_options())


def hook_saved(model: PreTrainedModel, hooks: Callable[[], AbstractContextManager[None]]) -> None:
    """Pass what a model saves for its backward pass through hooks, but for its output layer.

    The hooks are a context such as `torch.autograd.graph.saved_tensors_hooks`.
    """
    body = _body(model)
    forward = body.forward

    def hooked(*args: Any, **kwargs: Any) -> Any:
        with hooks():
            return forward(*args, **kwargs)

    body.forward = hooked


def freeze_unused(model: PreTrainedModel) -> None:
    """Freeze what text doesn't pass in a language model, such as the tower of one for images."""
    if model.get_output_embeddings() is None:
        return
    passed = (decoder_of(model), model.get_input_embeddings(), model.get_output_embeddings())
    used = {id(parameter) for module in passed for parameter in module.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in used:
            parameter.requires_grad_(False)


def compiler_options() -> dict[str, str | int | bool | Callable[..., Any]]:
    """Options for each `torch.compile` of a training; their names are those of TorchInductor."""
    return {
        # Otherwise the compiler tests each instruction set of the processor at each start, in
        # subprocesses, for 1.5 s, or 16 s the first time; `compiler_fault` covers the best one.
        "cpp.vec_isa_ok": True,
        # Otherwise the compiler times variants of a kernel on a GPU, and which one wins can change.
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
