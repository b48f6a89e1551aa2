"""How parameters, gradients and optimizer state are spread over the workers."""

from moray.config.schema import Train
from moray.train.job import Place
from moray.train.strategies.ddp import DistributedDataParallelStrategy
from moray.train.strategies.deepspeed import DeepSpeedStrategy
from moray.train.strategies.fsdp2 import FullyShardedStrategy
from moray.train.strategies.interface import Strategy

__all__ = ["Strategy", "make_strategy"]

_STRATEGIES: dict[str, type[Strategy]] = {
    "ddp": DistributedDataParallelStrategy,
    "deepspeed": DeepSpeedStrategy,
    "fsdp2": FullyShardedStrategy,
}


def make_strategy(settings: Train, place: Place) -> Strategy:
    """The strategy that the config names."""
    return _STRATEGIES[settings.strategy](settings, place)
