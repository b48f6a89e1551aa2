"""Build the module to train from a Hugging Face folder."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from moray.model.flops import flops_per_token
from moray.model.isolation import check_isolation
from moray.model.load import check_length, empty_model, load_model
from moray.model.loss import TokenLoss, has_plain_head
from moray.model.size import num_quantized, num_weights
from moray.train.engine.attention import choose_attention, use_attention
from moray.train.engine.compilation import (
    compile_blocks,
    reason_not_to_compile,
    use_cache,
)
from moray.train.engine.footprint import footprint, frozen_bytes
from moray.train.engine.strategies import Strategy
from moray.train.job import Job
from moray.workers.collectives import from_any_worker, from_first_worker, together
from moray.workers.worker import Worker

_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Built:
    """Facts about a module that was built.

    Attributes:
        flops_per_token: FLOPs of a forward and a backward pass.
        compiled: whether its blocks are compiled.
        note: description for the user.
    """

    flops_per_token: float
    compiled: bool
    note: str


def build(
    job: Job, worker: Worker, strategy: Strategy, block_size: int, tokens: int, packing: bool
) -> Built:
    """Build the module of a job and pass it to a strategy.

    Args:
        job: the run.
        worker: this worker.
        strategy: wraps the module.
        block_size: tokens per row.
        tokens: number of tokens in the whole run.
        packing: whether documents share rows.

    Raises:
        UserError: if the model doesn't fit the rows or the settings.
    """
    settings = job.settings
    model = together(lambda: _model(job, strategy.loads_weights))
    flops = flops_per_token(model, block_size)
    held = _held(model, job, worker)
    processors = worker.world_size * (job.threads if worker.device.type == "cpu" else 1)
    use_cache(job.cache)
    # Machines may differ, and all can check at the same time.
    reason = from_any_worker(
        lambda: reason_not_to_compile(settings, model, flops * tokens, worker.device, processors)
    )
    plain_head = from_first_worker(lambda: _checked(model, block_size, packing))
    attention = from_first_worker(
        lambda: choose_attention(
            model, settings, worker.device, block_size, compiled=reason is None
        )
    )
    together(lambda: use_attention(model, attention))
    module = TokenLoss(model, plain_head, passes_cu_seqlens=attention == "varlen")
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if reason is None:
        compile_blocks(module)
    module.train()
    strategy.wrap(module)
    note = "compiled" if reason is None else f"not compiled: {reason}"
    if worker.device.type != "cpu":
        note += f"; attention: {attention or 'default of transformers'}"
    return Built(flops, reason is None, f"{held}; blocks are {note}")


def _model(job: Job, with_weights: bool) -> PreTrainedModel:
    adapter = job.adapter
    dtype = _DTYPE[adapter.base_dtype] if adapter else torch.float32
    in_4bit = adapter is not None and adapter.quantize_base == "4bit"
    model = (
        load_model(job.start, dtype, in_4bit=in_4bit)
        if with_weights
        else empty_model(job.start, dtype)
    )
    if adapter is not None:
        # PEFT takes a while to import.
        from moray.model.adapter import add_adapter

        add_adapter(model, adapter, job.settings.seed)
    return model


def _held(model: PreTrainedModel, job: Job, worker: Worker) -> str:
    trained = model.num_parameters(only_trainable=True)
    quantized = num_quantized(model)
    frozen = sum(map(num_weights, model.parameters())) - trained
    held = frozen_bytes(job.adapter, linear=quantized, other=frozen - quantized)
    megabytes = footprint(job.settings, trained, held, worker.world_size).total / 1e6
    share = f" of {(trained + frozen) / 1e6:.1f} M" if frozen else ""
    return (
        f"{trained / 1e6:.1f} M{share} parameters are trained; each of {worker.world_size} workers "
        f"({worker.device.type}) needs {megabytes:,.0f} MB for weights, gradients and optimizer "
        "state"
    )


def _checked(model: PreTrainedModel, block_size: int, packing: bool) -> bool:
    """Check that the model fits the rows; returns whether its head is plain."""
    if packing:
        check_isolation(model)
    check_length(model, block_size)
    return has_plain_head(model)
