"""The memory of a worker for weights, gradients and optimizer state; activations come on top."""

from dataclasses import dataclass

from moray.config.schema.strategies import STRATEGIES, Part
from moray.config.schema.train import Adapter, Train
from moray.model.shapes import (
    Shapes,
    num_adapter_parameters,
    num_in_linear_layers,
    num_parameters,
)
from moray.train.optimizer import Optimizer

FLOAT = 4
BYTES = {"fp32": 4, "bf16": 2}
# Bytes of a quantized weight.
QUANTIZED = {"4bit": 1 / 2, "8bit": 1}
# With 4 bits, a scale of 8 bits for every 64 weights, and one of 32 bits for every 256 of these.
# Source: Dettmers et al., "QLoRA", 2023, section 3.
_SCALES = 1 / 64 + 4 / (64 * 256)
# What earlier stages of ZeRO don't shard.
_WHOLE_UNTIL_STAGE_3: dict[int, set[Part]] = {
    1: {"parameters", "gradients"},
    2: {"parameters"},
    3: set(),
}


def rows_of_micro_batch(settings: Train, workers: int) -> int:
    """Rows of a micro-batch: a step's rows are shared by workers, then divided evenly."""
    mine = -(-settings.global_batch_size // workers)
    return -(-mine // -(-mine // settings.micro_batch_rows))


@dataclass(frozen=True)
class Footprint:
    """Bytes on a worker; activations come on top.

    Attributes:
        parameters: what the forward pass computes with.
        gradients: gradients of the trained parameters.
        optimizer: the optimizer's state; with ZeRO, also a copy of the trained parameters.
    """

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer


def frozen_bytes(adapter: Adapter | None, linear: int, other: int) -> int:
    """Bytes of the weights of a frozen base; 0 without an adapter, when all weights are trained.

    Args:
        linear: number of weights in linear layers other than the output embedding.
        other: number of all other weights; of scales too, where they are weights.
    """
    if adapter is None:
        return 0
    each: float = BYTES[adapter.base_dtype]
    in_linear = QUANTIZED[adapter.quantize_base] if adapter.quantize_base else each
    return round(in_linear * linear + each * other) + scale_bytes(adapter, linear)


def scale_bytes(adapter: Adapter | None, linear: int) -> int:
    """Bytes of `frozen_bytes` that are scales of 4-bit weights, which no strategy shards."""
    return round(_SCALES * linear) if adapter and adapter.quantize_base == "4bit" else 0


def footprint(
    settings: Train,
    workers: int,
    trained: int,
    adapter: Adapter | None = None,
    linear: int = 0,
    other: int = 0,
    in_matrices: int = 0,
) -> Footprint:
    """The memory footprint of a run's strategy.

    Source: Rajbhandari et al., "ZeRO", 2020, section 3, for fp32 throughout.

    Args:
        trained: number of trained parameters.
        linear: number of frozen parameters in linear layers, as for `frozen_bytes`.
        other: number of the other frozen parameters.
        in_matrices: number of trained parameters in the matrices of blocks.
    """
    frozen, scales = frozen_bytes(adapter, linear, other), scale_bytes(adapter, linear)
    strategy = STRATEGIES[settings.strategy]
    sharded = strategy.sharded
    weight = gradient = BYTES[settings.weights]
    if settings.strategy == "fsdp2":
        if settings.global_batch_size > workers * settings.micro_batch_rows:
            # Gradients that are accumulated before they are reduced are not sharded, and in fp32.
            sharded -= {"gradients"}
            gradient = FLOAT
        workers = settings.fsdp2.shard_size or workers
    if settings.strategy == "deepspeed":
        sharded -= _WHOLE_UNTIL_STAGE_3[settings.deepspeed.zero_stage]

    copy = FLOAT if strategy.copies_weights else 0

    def share(part: Part) -> int:
        return workers if part in sharded else 1

    return Footprint(
        (weight * trained + frozen - scales) // share("parameters") + scales,
        gradient * trained // share("gradients"),
        (Optimizer(settings).state_bytes(trained, in_matrices) + copy * trained)
        // share("optimizer"),
    )


def footprint_of(
    settings: Train, adapter: Adapter | None, shapes: Shapes, workers: int
) -> Footprint:
    """The memory footprint of training a model of these shapes, at most."""
    trained, in_matrices = _num_trained(adapter, shapes)
    linear = num_in_linear_layers(shapes)
    other = num_parameters(shapes) - linear
    return footprint(settings, workers, trained, adapter, linear, other, in_matrices)


def checkpoint_bytes(settings: Train, adapter: Adapter | None, shapes: Shapes) -> int:
    """The size of a checkpoint of training a model of these shapes, at most."""
    trained, in_matrices = _num_trained(adapter, shapes)
    saved = Optimizer(settings).saved_bytes(trained, in_matrices)
    return BYTES[settings.weights] * trained + saved


def _num_trained(adapter: Adapter | None, shapes: Shapes) -> tuple[int, int]:
    """The number of trained parameters, and of those in the matrices of blocks."""
    if adapter is None:
        return num_parameters(shapes), num_in_linear_layers(shapes)
    trained = num_adapter_parameters(shapes, adapter.rank)
    return trained, trained
