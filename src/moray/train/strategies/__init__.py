"""How parameters, gradients and optimizer state are spread over the workers."""

from moray.train.strategies.ddp import DistributedDataParallelStrategy
from moray.train.strategies.interface import Strategy

__all__ = ["DistributedDataParallelStrategy", "Strategy"]
