"""How parameters, gradients and optimizer state are distributed over the workers."""

from importlib import import_module
from typing import cast

from moray.config.schema import Train
from moray.train.engine.strategies.interface import Strategy, StrategyModule
from moray.workers.worker import Worker

__all__ = ["Strategy", "make_strategy"]


def make_strategy(settings: Train, worker: Worker) -> Strategy:
    """The strategy that the config names."""
    # By name, so that a run doesn't import the libraries of the others.
    module = import_module(f"moray.train.engine.strategies.{settings.strategy}")
    return cast(StrategyModule, module).strategy(settings, worker)
