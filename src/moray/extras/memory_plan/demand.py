"""What a worker of a run holds in memory at its peak, found without computing or weights."""

from copy import copy
from functools import cached_property

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from moray.extras.memory_plan.setup import Setup, module_without_weights, without_values
from moray.extras.memory_plan.simulation import (
    Bytes,
    Kind,
    Pass,
    autocast_as_on_cuda,
    on_fake_cpu,
    simulate,
    simulate_loss,
)
from moray.model.folder import DTYPES
from moray.model.forward import blocks_of
from moray.model.size import num_weights
from moray.train.memory import FLOAT, QUANTIZED, Footprint, footprint
from moray.train.optimizer import block_matrices
from moray.train.task import LossModule

# Rows of the two passes that others follow from. With one row, some models take other paths.
_ROWS = (2, 3)
# Of DeepSpeed's `reduce_bucket_size`: gradients on their way, in fp32.
_BUCKET = 4 * 5 * 10**8
# Of a search for the largest micro-batch.
MOST_ROWS = 1024


class Demand:
    """The memory that a worker of a setup needs, for any number of rows in a micro-batch.

    Attributes:
        setup: the setup.
        trained: number of trained weights.
        whole: number of all weights.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._on_meta, quantized = module_without_weights(setup)
        self._quantized = sum(map(num_weights, quantized))
        weights = list(self._on_meta.parameters())
        self.trained = _size(weights, trained=True)
        self.whole = _size(weights)
        matrices = block_matrices(self._on_meta.model)
        self._in_matrices = sum(weight.numel() for weight in matrices)
        self._around = _around_blocks(self._on_meta.model, setup, quantized)
        self._losses: dict[int, Bytes] = {}

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
        in_loss = forward[-1:] + self._loss(rows)
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

    def _loss(self, rows: int) -> Bytes:
        """What the loss adds at each of its moments; see `simulate_loss`."""
        setup = self.setup
        if not setup.has_logits:
            # Of a number for each class.
            return np.zeros((1, len(Kind)))
        if rows not in self._losses:
            on_cpu = setup.device == "cpu"
            module, mode = self._on_cpu if on_cpu else (self._on_meta, None)
            dtype = module.model.dtype if on_cpu else DTYPES[setup.precision]
            backward, batch = setup.needs_most_backward, setup.batch(rows)
            self._losses[rows] = simulate_loss(
                module, batch, dtype, setup.precision, mode, backward
            )
        return self._losses[rows]

    @cached_property
    def _on_cpu(self) -> tuple[LossModule, FakeTensorMode]:
        module, mode = module_without_weights(self.setup)[0], FakeTensorMode()
        on_fake_cpu(module, mode)
        if self.setup.device == "cuda":
            autocast_as_on_cuda(module.model)
        return module, mode

    @cached_property
    def _passes(self) -> list[Pass]:
        module, mode = self._on_cpu
        # Chunks, whose number depends on that of the rows, are for `_loss`.
        few = self.setup.needs_most_backward
        batches = (self.setup.batch(rows, few) for rows in _ROWS)
        with without_values(module.model, self.setup):
            two, three = (simulate(module, batch, self.setup.precision, mode) for batch in batches)
            if len(two.forward) != len(three.forward) or len(two.backward) != len(three.backward):
                raise RuntimeError("its operations depend on the number of rows")
        return [two, three]


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
    return sum(num_weights(weight) for weight in weights if weight.requires_grad or not trained)
