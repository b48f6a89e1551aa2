"""Compiled transformer blocks, where they earn what compiling costs."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch._inductor.config as inductor
from torch._dynamo.exc import BackendCompilerFailed
from transformers import PreTrainedModel

from moray.config.schema import Train
from moray.errors import UserError, first_line
from moray.model.blocks import blocks_of
from moray.model.cross_entropy import softmax_loss
from moray.model.loss import TokenLoss

# What an uncompiled run does in a second, roughly: on a core with bf16, on a data-centre GPU.
_FLOPS_PER_CORE, _FLOPS_PER_GPU = 0.15e12, 100e12
# Compiling takes some 20 s when nothing is cached, and saves about a third of the time.
_SECONDS_THAT_EARN_IT = 60.0


def reason_not_to_compile(
    settings: Train,
    model: PreTrainedModel,
    flops: float,
    device: torch.device,
    processors: float,
) -> str | None:
    """Why a run isn't compiled; None if it is.

    A function of the run and of what it runs on alone, never of the steps that are left: a resumed
    run computes as before.

    Args:
        settings: the `train` section.
        model: of the run.
        flops: of the whole run.
        device: what it computes on.
        processors: GPUs, or cores, of all workers.

    Raises:
        UserError: if the config asks for what this machine can't do.
    """
    if settings.compile is False:
        return "compile: false"
    each = _FLOPS_PER_CORE if device.type == "cpu" else _FLOPS_PER_GPU
    seconds = flops / (each * processors)
    if settings.compile == "auto" and seconds < _SECONDS_THAT_EARN_IT:
        return f"the run takes some {seconds:.0f} s, too few to earn what compiling costs"
    if settings.compile == "auto" and not _has_attention(model):
        # Measured on a tiny Mamba: two minutes for rows of 32 tokens.
        return f"the compiler would unroll a {model.config.model_type} token by token"
    fault = _no_blocks(model) or compiler_fault(device)
    if fault and settings.compile is True:
        raise UserError("train.compile", f"got true where {fault}", "set it to auto or to false")
    return fault


def _has_attention(model: PreTrainedModel) -> bool:
    return getattr(model.config.get_text_config(), "num_attention_heads", 0) > 0


def _no_blocks(model: PreTrainedModel) -> str | None:
    if blocks_of(model):
        return None
    return f"transformers doesn't say which modules of a {model.config.model_type} are its blocks"


def compiler_fault(device: torch.device) -> str | None:
    """What keeps this machine from compiling: a compiler or headers that are missing, say."""
    # PyTorch would try each of the processor's instruction sets at each start, in processes of its
    # own, for 1.5 s, or 16 s the first time; the trial below does that for the best of them.
    inductor.cpp.vec_isa_ok = True
    try:
        torch.compile(torch.exp)(torch.ones(8, device=device))
    except BackendCompilerFailed as error:
        return f"the compiler fails ({first_line(error)})"
    return None


def use_cache(folder: Path) -> None:
    """Keep compiled code in a folder, for later runs; before anything is compiled."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def compile_blocks(module: TokenLoss) -> None:
    """Have blocks and softmax compiled when they are first called.

    Block by block: the same code serves all of them, and is there in a fifth of the time that the
    whole model takes.
    """
    for block in blocks_of(module.model):
        block.compile(dynamic=False)
    module.softmax = torch.compile(softmax_loss)


def uncompiled() -> AbstractContextManager[object]:
    """For the body, compiled modules run as they were written."""
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
