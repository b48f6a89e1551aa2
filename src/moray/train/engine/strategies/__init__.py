"""How parameters, gradients and optimizer state are distributed over the workers."""

from moray.config.schema import Train
from moray.train.engine.strategies.ddp import DistributedDataParallelStrategy
from moray.train.engine.strategies.deepspeed import DeepSpeedStrategy
from moray.train.engine.strategies.fsdp2 import FullyShardedStrategy
from moray.train.engine.strategies.interface import Strategy
from moray.workers.worker import Worker

__all__ = ["Strategy", "make_strategy"]

_STRATEGIES: dict[str, type[Strategy]] = {
    "ddp": DistributedDataParallelStrategy,
    "deepspeed": DeepSpeedStrategy,
    "fsdp2": FullyShardedStrategy,
}


def make_strategy(settings: Train, worker: Worker) -> Strategy:
    """The strategy that the config names."""
    return _STRATEGIES[settings.strategy](settings, worker)
