"""Facts about strategies that are needed without importing `moray.train.strategies`."""

from dataclasses import dataclass
from typing import Literal

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
        takes_4bit: whether a frozen base can be quantized to 4 bits.
    """

    sharded: frozenset[Part] = frozenset()
    copies_weights: bool = False
    library: str | None = None
    deterministic: bool = True
    takes_4bit: bool = False


_ALL: frozenset[Part] = frozenset(("parameters", "gradients", "optimizer"))

STRATEGIES: dict[StrategyName, StrategyFacts] = {
    "ddp": StrategyFacts(takes_4bit=True),
    "fsdp2": StrategyFacts(sharded=_ALL),
    # Of ZeRO's third stage.
    "deepspeed": StrategyFacts(
        sharded=_ALL, copies_weights=True, library="deepspeed", deterministic=False
    ),
}
