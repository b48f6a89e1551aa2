"""Build the module to train from a Hugging Face folder, reproducibly if asked to."""

import os
from dataclasses import dataclass

import torch
from torch.autograd.graph import save_on_cpu
from transformers import PreTrainedModel

from moray.config import extras
from moray.errors import UserError
from moray.model.folder import DTYPES, base_of_adapter
from moray.model.forward import hook_saved
from moray.model.quantization import Quantization
from moray.model.size import num_quantized
from moray.train.kernels import (
    choose_attention,
    compile_module,
    compiles_whole,
    reason_not_to_compile,
    use_attention,
    use_cache,
)
from moray.train.memory import footprint, rows_of_micro_batch
from moray.train.spec import RunSpec
from moray.train.statistics import Statistics
from moray.train.strategies import Strategy
from moray.train.task import LossModule, Task
from moray.train.trained import Trained, trained_of
from moray.workers.collectives import from_any_worker, from_first_worker, together
from moray.workers.entry import Worker


@dataclass(frozen=True)
class Built:
    """Facts about a module that was built.

    Attributes:
        flops_per_row: FLOPs of a forward and a backward pass.
        compiled: whether its blocks are compiled.
        note: description for the user.
        trained: what of its model is trained.
        statistics: its running statistics.
        module: the model with its loss, which the strategy distributes.
    """

    flops_per_row: float
    compiled: bool
    note: str
    trained: Trained
    statistics: Statistics
    module: LossModule


def build(spec: RunSpec, worker: Worker, strategy: Strategy, task: Task, num_rows: int) -> Built:
    """Build the module of a spec and pass it to a strategy.

    Args:
        num_rows: number of rows in the whole run.

    Raises:
        UserError: if the model doesn't fit the rows or the settings.
    """
    settings = spec.settings
    model = together(lambda: _model(spec, task, strategy.loads_weights))
    trained = together(lambda: trained_of(model, spec.adapter))
    flops = task.flops_per_row(model)
    held = _held(trained, num_quantized(model), spec, worker)
    processors = worker.world_size * (spec.threads if worker.device.type == "cpu" else 1)
    use_cache(spec.cache)
    # Machines may differ, and all can check at the same time.
    reason = from_any_worker(
        lambda: reason_not_to_compile(settings, model, flops * num_rows, worker.device, processors)
    )
    module = task.loss_module(model)
    if settings.router_aux_loss:
        together(lambda: module.balance_routers(settings.router_aux_loss))
    attention = from_first_worker(
        lambda: choose_attention(
            model, settings, worker.device, task.row_length, compiled=reason is None
        )
    )
    together(lambda: use_attention(model, attention))
    module.attention = attention
    # On CPUs, compiled code would round otherwise than that of older runs.
    if spec.adapter and worker.device.type == "cuda" and settings.precision == "bf16":
        from moray.model.adapter import leave_casts_to_autocast

        leave_casts_to_autocast(model, spec.adapter)
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(model)
    if settings.gradient_checkpointing == "offload":
        hook_saved(model, lambda: save_on_cpu(pin_memory=True))
    whole = compiles_whole(model, settings, spec.adapter, flops, num_rows, worker)
    if reason is None:
        compile_module(module, whole, worker.device)
    module.train()
    strategy.wrap(module)
    note = "compiled" if reason is None else f"not compiled: {reason}"
    note += " as a whole" if reason is None and whole else ""
    if worker.device.type != "cpu":
        note += f"; attention: {attention or 'default of transformers'}"
    statistics = Statistics(module.model, worker)
    count = rows_of_micro_batch(settings, worker.world_size)
    rows = f"micro-batches of {count} row{'s' * (count != 1)}"
    note = f"{trained}; {held}; {rows}; blocks are {note}"
    return Built(flops, reason is None, note, trained, statistics, module)


def enable_gradient_checkpointing(model: PreTrainedModel) -> None:
    """Have a model compute the states inside its blocks again in the backward pass.

    Raises:
        UserError: if it can't.
    """
    if not model.supports_gradient_checkpointing:
        raise UserError(
            "train.gradient_checkpointing",
            f"a {model.config.model_type} model doesn't support it",
            "set it to false",
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})


def _model(spec: RunSpec, task: Task, with_weights: bool) -> PreTrainedModel:
    adapter = spec.adapter
    dtype = DTYPES[adapter.base_dtype if adapter else spec.settings.weights]
    bits = adapter.quantize_base if adapter else None
    continues = adapter is not None and not adapter.create_new_adapter
    start = base_of_adapter(spec.start) if continues else spec.start
    if with_weights:
        # What will be sharded may not fit on one GPU.
        device = None if spec.settings.strategy == "ddp" else torch.device("cpu")
        model = task.load(start, dtype, Quantization(bits, device) if bits else None)
    else:
        model = task.empty(start, dtype)
        if bits:
            extras.part(extras.QUANTIZED[bits], "base").quantize_empty(model, bits)
    if adapter is not None:
        # PEFT takes a while to import.
        from moray.model.adapter import add_to_base_of_run

        recompute = not spec.settings.gradient_checkpointing
        before = spec.start if continues and with_weights else None
        add_to_base_of_run(model, adapter, spec.settings.seed, recompute, before)
    if folder := extras.WEIGHTS.get(spec.settings.weights):
        extras.part(folder, "rounding").check_weights(model, spec.settings)
    return model


def _held(trained: Trained, quantized: int, spec: RunSpec, worker: Worker) -> str:
    held = footprint(
        spec.settings,
        worker.world_size,
        trained.parameters,
        spec.adapter,
        quantized,
        trained.total - trained.parameters - quantized,
        trained.in_matrices,
    ).total
    workers = "the worker" if worker.world_size == 1 else f"each of {worker.world_size} workers"
    return (
        f"{workers} ({worker.device.type}) needs {held / 1e6:,.0f} MB for weights, gradients and "
        "optimizer state"
    )


def compute_deterministically(device: torch.device) -> None:
    """Use only deterministic algorithms on a GPU; call before anything is computed on it.

    Operations without a deterministic algorithm raise. Source: PyTorch, "Reproducibility".
    """
    if device.type == "cpu":
        return
    # cuBLAS reads it when it is first used.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
