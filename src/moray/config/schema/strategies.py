"""How work is distributed over workers: the strategies, and the settings of each."""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import model_validator

from moray.config.schema.base import PositiveInt, Section, execution_only

StrategyName = Literal["ddp", "fsdp2", "deepspeed"]
Part = Literal["parameters", "gradients", "optimizer"]


@dataclass(frozen=True)
class StrategyFacts:
    """A strategy, for checks of the config and of the machine.

    Attributes:
        sharded: what each worker has only a shard of.
        copies_weights: whether it has a copy of the trained parameters, in fp32, for the optimizer.
        library: optional library that it needs, and the extra of that name.
        deterministic: whether it is documented to be deterministic on GPUs.
        quantizes: whether a frozen base can be quantized.
        takes_any_optimizer: whether it steps with any optimizer, and not with copies of its own.
    """

    sharded: frozenset[Part] = frozenset()
    copies_weights: bool = False
    library: str | None = None
    deterministic: bool = True
    quantizes: bool = False
    takes_any_optimizer: bool = True


_ALL: frozenset[Part] = frozenset(("parameters", "gradients", "optimizer"))

STRATEGIES: dict[StrategyName, StrategyFacts] = {
    "ddp": StrategyFacts(quantizes=True),
    "fsdp2": StrategyFacts(sharded=_ALL, quantizes=True),
    # Of ZeRO's third stage.
    "deepspeed": StrategyFacts(
        sharded=_ALL,
        copies_weights=True,
        library="deepspeed",
        deterministic=False,
        takes_any_optimizer=False,
    ),
}


class FSDP2(Section):
    """PyTorch's fully sharded data parallel: each worker has a shard of every tensor."""

    reshard_after_forward: bool = execution_only(
        True,
        description="Whether to free a block's parameters after its forward pass and gather "
        "them again for the backward pass: less memory, more communication.",
    )
    cpu_offload: bool = execution_only(
        False,
        description="Whether to keep parameters, gradients and optimizer state in main memory.",
    )
    shard_size: PositiveInt | None = execution_only(
        None,
        description="Number of workers that share one copy of the model, such as the GPUs of a "
        "node; must divide `ray.num_workers`. Copies exchange only gradients (HSDP). By default, "
        "all workers share one.",
    )


class DeepSpeed(Section):
    """DeepSpeed's ZeRO. Needs the optional `deepspeed` extra."""

    zero_stage: Literal[1, 2, 3] = execution_only(
        2,
        description="What is sharded over the workers: optimizer state (1), also gradients (2), "
        "also parameters (3).",
    )
    offload_optimizer: bool = execution_only(
        False, description="Whether to keep the optimizer state in main memory."
    )
    offload_parameters: bool = execution_only(
        False, description="Whether to keep parameters in main memory; needs `zero_stage: 3`."
    )

    @model_validator(mode="after")
    def _parameters_are_spread(self) -> Self:
        if self.offload_parameters and self.zero_stage != 3:
            raise ValueError(
                "offload_parameters: true needs zero_stage: 3, the only one that shards "
                f"parameters, got zero_stage: {self.zero_stage}; change one of them"
            )
        return self
