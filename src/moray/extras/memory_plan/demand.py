"""What a worker of a run holds in memory at its peak, found without computing or weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from moray.config.schema.train import Adapter, Train
from moray.config.tasks import TaskName, module_of
from moray.errors import UserError, first_line
from moray.extras.memory_plan.simulation import (
    Bytes,
    Kind,
    Pass,
    autocast_as_on_cuda,
    compiled_softmax,
    offloaded,
    on_fake_cpu,
    quantize,
    simulate,
    simulate_loss,
    states_of_decoder,
)
from moray.model.attention import VARLEN, fault_of_kernel
from moray.model.folder import DTYPES
from moray.model.forward import blocks_of, hook_saved, resolve
from moray.model.load import empty_model
from moray.tasks.language.loss import TokenLoss, make_batch
from moray.tasks.language.rows import FIRST, TRAINED, row_type
from moray.train.engine import enable_gradient_checkpointing
from moray.train.kernels import choose_attention, use_attention
from moray.train.memory import (
    FLOAT,
    QUANTIZED,
    Footprint,
    footprint,
    rows_of_micro_batch,
)
from moray.train.optimizer import block_matrices
from moray.train.task import Batch, LossModule

# Rows of the two passes that others follow from. With one row, some models take other paths.
_ROWS = (2, 3)
# Of DeepSpeed's `reduce_bucket_size`: gradients on their way, in fp32.
_BUCKET = 4 * 5 * 10**8
# Tasks whose runs can be planned.
PLANNED: tuple[TaskName, ...] = (
    "language",
    "classification",
    "reward",
    "token_classification",
)
# Of a search for the largest micro-batch.
MOST_ROWS = 1024


@dataclass(frozen=True)
class Setup:
    """What memory depends on.

    Attributes:
        model: path of the model in the config, for errors.
        folder: has the model's `config.json`.
        block_size: tokens in a row.
        settings: the `train` section.
        adapter: the `adapter` section.
        workers: number of workers.
        device: of the workers.
        task: what the run is. Those with a module `planned` have a model, a loss and a batch of
            their own there; others are language modelling.
    """

    model: str
    folder: Path
    block_size: int
    settings: Train
    adapter: Adapter | None
    workers: int
    device: Literal["cuda", "cpu"]
    task: TaskName = "language"

    @property
    def own(self) -> ModuleType | None:
        """What a task that isn't language modelling computes with."""
        return None if self.task == "language" else module_of(self.task, "planned")

    def batch(self, rows: int) -> Batch:
        """Rows that are full: of one document each, all of whose tokens are trained."""
        if self.own:
            full: Batch = self.own.batch(rows, self.block_size)
            return full
        records = np.zeros(rows, row_type(self.block_size, np.dtype("<u4")))
        records["flags"] = TRAINED
        records["flags"][:, 0] |= FIRST
        return make_batch(records)

    def with_train(self, **keys: object) -> "Setup":
        """The same with other keys of the `train` section."""
        return replace(self, settings=self.settings.model_copy(update=keys))

    @property
    def rows(self) -> int:
        """Rows of a micro-batch."""
        return rows_of_micro_batch(self.settings, self.workers)

    @property
    def precision(self) -> str:
        """`bf16` or `fp32`; GPUs are taken to have bf16."""
        if "bf16" in (self.settings.weights, self.adapter and self.adapter.base_dtype):
            return "bf16"
        precision = self.settings.precision
        if self.device == "cuda":
            return "bf16" if precision == "auto" else precision
        return resolve(precision, torch.device("cpu"))


class Demand:
    """The memory that a worker of a setup needs, for any number of rows in a micro-batch.

    Attributes:
        setup: the setup.
        trained: number of trained weights.
        whole: number of all weights.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._on_meta, quantized = self._module()
        self._quantized = sum(weight.numel() for weight in quantized)
        weights = list(self._on_meta.parameters())
        self.trained = sum(weight.numel() for weight in weights if weight.requires_grad)
        self.whole = sum(weight.numel() for weight in weights)
        matrices = block_matrices(self._on_meta.model)
        self._in_matrices = sum(weight.numel() for weight in matrices)
        self._around = _around_blocks(self._on_meta.model, setup, quantized)
        self._losses: dict[int, float] = {}

    def under(self, setup: Setup) -> "Demand":
        """That of a setup with other workers or micro-batches, which runs the same passes."""
        other = copy(self)
        other._passes = self._passes
        other.setup = setup
        return other

    def parts(self, rows: int) -> dict[str, float]:
        """Bytes by what they are for, at the moment when most are needed.

        Args:
            rows: in a micro-batch.
        """
        two, three = self._passes
        forward, backward = (
            first + (rows - _ROWS[0]) * (second - first)
            for first, second in (
                (two.forward, three.forward),
                (two.backward, three.backward),
            )
        )
        in_loss = forward[-1:].copy()
        in_loss[:, Kind.LOSS] += self._loss(rows)
        moments = np.concatenate([forward, in_loss, backward])
        held, gradients = self._placed, self._gradients(moments)
        rest = moments[:, : Kind.GRADIENTS].sum(axis=1) + gradients
        peak = int(rest.argmax())
        at = moments[peak]
        return {
            "weights": float(held.parameters),
            f"weights, cast to {self.setup.precision}": float(at[Kind.CASTS]),
            "gradients": float(gradients[peak]),
            "optimizer state": float(held.optimizer),
            "saved activations": float(at[Kind.ACTIVATIONS]),
            "logits and loss": float(at[Kind.LOSS]),
            "workspace": float(at[Kind.WORKSPACE] + self._around),
        }

    def total(self, rows: int) -> float:
        """Sum of all parts."""
        return sum(self.parts(rows).values())

    def largest(self, limit: float) -> int:
        """The largest micro-batch that fits into so many bytes, at most `MOST_ROWS`; 0 if none."""
        fits, too_many = 0, MOST_ROWS + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.total(middle) <= limit:
                fits = middle
            else:
                too_many = middle
        return fits

    @property
    def _placed(self) -> Footprint:
        """What of the footprint is on the worker's device."""
        setup, settings = self.setup, self.setup.settings
        other = self.whole - self.trained - self._quantized
        held = footprint(
            settings,
            setup.workers,
            self.trained,
            setup.adapter,
            self._quantized,
            other,
            self._in_matrices,
        )
        if self.setup.device == "cpu":
            return held
        if settings.strategy == "fsdp2" and settings.fsdp2.cpu_offload:
            return Footprint(0, 0, 0)
        if settings.strategy == "deepspeed":
            section = settings.deepspeed
            return Footprint(
                0 if section.offload_parameters else held.parameters,
                held.gradients,
                0 if section.offload_optimizer else held.optimizer,
            )
        return held

    def _gradients(self, moments: Bytes) -> Bytes:
        """Bytes of gradients at each moment."""
        settings = self.setup.settings
        accumulates = settings.global_batch_size > self.setup.workers * self.setup.rows
        if settings.strategy == "ddp" and self.setup.workers == 1 and not accumulates:
            return moments[:, Kind.GRADIENTS]
        # In buckets that are always there, or of the micro-batch before.
        return np.full(len(moments), float(self._placed.gradients))

    def _loss(self, rows: int) -> float:
        if self.setup.own:
            # Of a number for each class.
            return 0.0
        if rows not in self._losses:
            if self.setup.device == "cuda":
                module, mode, dtype = self._on_meta, None, DTYPES[self.setup.precision]
            else:
                (module, mode), dtype = self._on_cpu, self._on_meta.model.dtype
            width = module.model.get_output_embeddings().weight.shape[-1]
            shape = (rows, self.setup.block_size, width)
            with mode or nullcontext():
                states = torch.empty(
                    shape, dtype=dtype, device="cpu" if mode else "meta", requires_grad=True
                )
            batch = self.setup.batch(rows)
            self._losses[rows] = simulate_loss(module, batch, states, self.setup.precision, mode)
        return self._losses[rows]

    @cached_property
    def _on_cpu(self) -> tuple[LossModule, FakeTensorMode]:
        module, mode = self._module()[0], FakeTensorMode()
        on_fake_cpu(module, mode)
        if self.setup.device == "cuda":
            autocast_as_on_cuda(module.model)
        return module, mode

    @cached_property
    def _passes(self) -> list[Pass]:
        module, mode = self._on_cpu
        batches = map(self.setup.batch, _ROWS)
        with _without_values(module.model, self.setup):
            two, three = (simulate(module, batch, self.setup.precision, mode) for batch in batches)
            if len(two.forward) != len(three.forward) or len(two.backward) != len(three.backward):
                raise RuntimeError("its operations depend on the number of rows")
        return [two, three]

    def _module(self) -> tuple[LossModule, list[torch.Tensor]]:
        """The module that is trained, on `meta`, and its quantized weights."""
        setup, adapter, settings = self.setup, self.setup.adapter, self.setup.settings
        dtype = DTYPES[adapter.base_dtype if adapter else settings.weights]
        model = (
            setup.own.empty(setup.folder, dtype) if setup.own else empty_model(setup.folder, dtype)
        )
        plain = False
        if not setup.own:
            with _without_values(model, setup):
                plain = has_plain_head(model)
        quantized: list[torch.Tensor] = []
        if adapter and adapter.quantize_base:
            quantized = quantize(model, adapter.quantize_base)
        if adapter:
            # PEFT takes a while to import.
            from moray.model.adapter import add_adapter

            add_adapter(model, adapter, settings.seed)
        if settings.strategy == "fsdp2":
            # It casts what it gathers.
            model.to(DTYPES[setup.precision])
        module = setup.own.loss_module(model) if setup.own else TokenLoss(model, plain)
        with _without_values(model, setup):
            module.attention = _attention(model, setup)
        use_attention(model, module.attention)
        if settings.gradient_checkpointing:
            enable_gradient_checkpointing(model)
        if settings.gradient_checkpointing == "offload" and setup.device == "cuda":
            hook_saved(model, offloaded)
        if setup.device == "cuda" and settings.compile is not False and not setup.own:
            module.softmax = compiled_softmax
        module.train()
        return module, quantized


@contextmanager
def _without_values(model: PreTrainedModel, setup: Setup) -> Iterator[None]:
    """Say that a model can't be planned if the body fails."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            setup.model,
            f"a {model.config.model_type} model can't be run without values ({first_line(error)})",
            "set train.micro_batch_size to a number, train a few steps, and see what is used",
        ) from error


def _attention(model: PreTrainedModel, setup: Setup) -> str | None:
    settings = setup.settings
    if setup.device == "cpu":
        compiled, length = settings.compile is True, None if setup.own else setup.block_size
        return choose_attention(model, settings, torch.device("cpu"), length, compiled=compiled)
    if settings.attention in ("sdpa", "eager"):
        return settings.attention
    if setup.own:
        return None
    # Also for `flex`, which keeps as much.
    is_fused = setup.precision == "bf16" and not fault_of_kernel(model, VARLEN)
    return "varlen" if is_fused else None


def _around_blocks(model: PreTrainedModel, setup: Setup, quantized: list[torch.Tensor]) -> float:
    """Bytes of what a strategy gathers: its weights, and gradients on their way."""
    settings = setup.settings
    is_sharded = settings.strategy == "fsdp2" or (
        settings.strategy == "deepspeed" and settings.deepspeed.zero_stage == 3
    )
    buckets = _BUCKET if settings.strategy == "deepspeed" else 0
    if not is_sharded:
        return float(buckets)
    each = DTYPES[setup.precision].itemsize
    blocks = [list(block.parameters()) for block in blocks_of(model)]
    inside = {id(weight) for block in blocks for weight in block}
    outside = [weight for weight in model.parameters() if id(weight) not in inside]
    largest = max(blocks, key=_size, default=[])
    gathered = blocks if not settings.fsdp2.reshard_after_forward else [largest, largest]
    weights: float = each * (_size(outside) + sum(map(_size, gathered)))
    if setup.adapter and setup.adapter.quantize_base:
        saved = each - QUANTIZED[setup.adapter.quantize_base]
        smaller = {id(weight) for weight in quantized}
        for block in gathered:
            weights -= saved * _size([weight for weight in block if id(weight) in smaller])
    # A block's gradient is reduced in fp32; those outside of blocks wait for the end.
    gradients = (each + FLOAT) * _size(largest, True) + each * _size(outside, True)
    return float(buckets + weights + (0 if buckets else gradients))


def _size(weights: list[nn.Parameter], trained: bool = False) -> int:
    return sum(weight.numel() for weight in weights if weight.requires_grad or not trained)


# Operations of a linear layer on any tensor; of `meta`, which has no values, all that can be asked.
_LINEAR = {
    "mm", "addmm", "linear", "matmul", "bmm", "t", "transpose", "view", "_unsafe_view", "reshape",
    "slice", "alias", "detach", "expand", "permute", "unsqueeze", "squeeze",
}  # fmt: skip


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Callable[..., object], types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.__name__.partition(".")[0])
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether logits are the output embedding of the decoder's states, by the operations.

    The training asks the same of values, which a model on `meta` doesn't have.

    Args:
        model: on `meta`.
    """
    operations = _Operations()
    width = model.get_output_embeddings().weight.shape[-1]
    tokens = torch.zeros(1, 2, dtype=torch.long, device="meta")
    states = torch.empty(1, 2, width, dtype=model.dtype, device="meta")
    with states_of_decoder(model, states), operations:
        model(input_ids=tokens, use_cache=False)
    return set(operations.names) <= _LINEAR
