"""What a model is computed with: compiled blocks, if that saves time overall, and attention."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from transformers import PreTrainedModel

from moray.config.schema.train import Adapter, Train
from moray.errors import UserError, first_line
from moray.model.attention import FLEX, VARLEN, fault_of_kernel, fault_of_varlen
from moray.model.folder import DTYPES
from moray.model.forward import blocks_of, compile_model, compiler_options
from moray.train.checks import needs_gpu
from moray.train.task import LossModule
from moray.workers.entry import Worker

# Rough FLOP/s of an uncompiled run: on a core with bf16, on a data-centre GPU.
_FLOPS_PER_CORE, _FLOPS_PER_GPU = 0.15e12, 100e12
# Compiling takes some 20 s when nothing is cached, and saves about a third of the time.
_SECONDS_THAT_EARN_IT = 60.0
# Compiled as a whole, GPT-2 of 124 M took 2.2 ms less for each of its batches on an H100 (6 %), and
# over a minute more to compile.
_BATCHES_THAT_EARN_ALL = 50_000
# While a GPU computes so much of a block, forward and backward, the host calls the next one.
_FLOPS_THAT_HIDE_THE_HOST = 2e12
# PyTorch compiles the same code for so many shapes, and runs it uncompiled for others.
_MOST_KINDS = 8


def reason_not_to_compile(
    settings: Train,
    model: PreTrainedModel,
    flops: float,
    device: torch.device,
    processors: float,
) -> str | None:
    """Why a run isn't compiled; None if it is.

    Depends only on the run and its hardware, never on the number of steps left, so that a resumed
    run computes as before.

    Args:
        flops: FLOPs of the whole run.
        processors: number of GPUs, or of CPU cores, over all workers.

    Raises:
        UserError: if the config asks for compilation, but it isn't possible here.
    """
    if settings.compile is False:
        return "compile: false"
    each = _FLOPS_PER_CORE if device.type == "cpu" else _FLOPS_PER_GPU
    seconds = flops / (each * processors)
    if settings.compile == "auto" and seconds < _SECONDS_THAT_EARN_IT:
        return "the run is too short for compiling to pay off"
    if settings.compile == "auto" and _is_recurrent(model):
        # Measured on a tiny Mamba: two minutes for rows of 32 tokens.
        return f"the compiler would unroll a {model.config.model_type} model token by token"
    if settings.compile == "auto" and (kinds := _num_kinds(model)) > _MOST_KINDS:
        return f"its blocks have {kinds} different shapes, and each would be compiled by itself"
    fault = _no_blocks(model) or compiler_fault(device)
    if fault and settings.compile is True:
        raise UserError("train.compile", f"can't compile: {fault}", "set it to auto or false")
    return fault


def _is_recurrent(model: PreTrainedModel) -> bool:
    """Whether it is a language model without attention."""
    text = model.config.get_text_config()
    return hasattr(text, "vocab_size") and not getattr(text, "num_attention_heads", 0)


def _num_kinds(model: PreTrainedModel) -> int:
    """Number of different blocks, by the shapes of their weights."""
    blocks = blocks_of(model)
    return len({(type(one), *(weight.shape for weight in one.parameters())) for one in blocks})


def _no_blocks(model: PreTrainedModel) -> str | None:
    if blocks_of(model):
        return None
    kind = model.config.model_type
    return f"transformers doesn't say which modules of a {kind} model are its blocks"


def compiler_fault(device: torch.device) -> str | None:
    """Why this machine can't compile, for example a missing compiler; None if it can."""
    values = torch.ones(8, device=device)
    try:
        torch.compile(torch.exp, options=compiler_options())(values)
    except RuntimeError as error:
        return f"the compiler fails ({first_line(error)})"
    return None


def use_cache(folder: Path) -> None:
    """Cache compiled code in a folder for later runs; call before anything is compiled.

    If its path has a space, PyTorch's default folder is kept: it doesn't quote paths for the
    compiler.
    """
    if len(str(folder).split()) == 1:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def compile_module(module: LossModule, whole: bool, device: torch.device) -> None:
    """Compile the model, as a whole or block by block, and the loss on their first call."""
    if device.type == "cuda":
        # DDP would have blocks cut where its buckets end. It exchanges gradients block by block
        # anyway. On CPUs, whole blocks would round otherwise than those of older runs.
        torch._dynamo.config.optimize_ddp = False
    compile_model(module.model, whole)
    module.compile_loss()


def compiles_whole(
    model: PreTrainedModel,
    settings: Train,
    adapter: Adapter | None,
    flops_per_row: float,
    num_rows: int,
    worker: Worker,
) -> bool:
    """Whether a run of so many rows on a GPU compiles its model as a whole."""
    flops_of_batch = flops_per_row * settings.micro_batch_rows
    return (
        worker.device.type == "cuda"
        and num_rows >= _BATCHES_THAT_EARN_ALL * settings.micro_batch_rows
        and flops_of_batch < _FLOPS_THAT_HIDE_THE_HOST * len(blocks_of(model))
        # Strategies shard block by block, and exchange gradients while the others are computed.
        and worker.world_size == 1
        and settings.strategy == "ddp"
        and not settings.gradient_checkpointing
        and not (adapter and adapter.quantize_base)
    )


def uncompiled() -> AbstractContextManager[object]:
    """During the body, compiled modules run uncompiled."""
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


_NAMES = {"eager": "eager", "sdpa": "sdpa", "varlen": VARLEN, "flex": FLEX}

# When compiled, plain attention on a CPU is faster than PyTorch's own kernel, whose backward pass
# is slow. But it keeps the scores of all pairs of tokens in memory, so rows have to be short.
_PLAIN_ATTENTION_TOKENS = 512


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
    if wanted == "auto" and row_length is None:
        return None
    if wanted == "flex":
        fault = fault_of_kernel(model, FLEX)
    else:
        fault = fault_of_varlen(model, DTYPES[settings.precision], device)
    if wanted == "auto":
        return None if fault else "varlen"
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
