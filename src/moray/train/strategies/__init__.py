"""How parameters, gradients and optimizer state are distributed over the workers."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Protocol, cast

from torch import Tensor, nn

from moray.config.schema.train import Train
from moray.tasks.interface import LossModule
from moray.train.adamw_8bit import Blocks
from moray.workers.entry import Worker

# Fills tensors in place, by their names, from a checkpoint.
Read = Callable[[dict[str, Tensor]], None]


class Strategy(Protocol):
    """How parameters, gradients and optimizer state are distributed over the workers.

    All workers call each method, in the same order.

    Attributes:
        module: computes the loss of a batch; set by `wrap`.
        loads_weights: whether this worker loads the initial weights; otherwise it gets them from
            the first worker.
    """

    module: nn.Module
    loads_weights: bool

    def __init__(self, settings: Train, worker: Worker) -> None: ...

    def wrap(self, module: LossModule) -> None:
        """Distribute a module over the workers and make its optimizer.

        Raises:
            UserError: if the strategy can't distribute the model, or over so many workers, or if a
                library is missing.
        """

    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """Context of a micro-batch's forward and backward pass; the last one reduces gradients."""

    def backward(self, loss: Tensor) -> None:
        """Accumulate a micro-batch's gradients; they are averaged over workers."""

    def step(self, learning_rate: float) -> Tensor:
        """Clip the gradients, take an optimizer step, clear the gradients.

        Returns:
            The norm of the gradients before clipping, shape (). The step is taken even if the norm
            isn't finite where checking it would make the worker wait for its device.
        """

    def state(self) -> dict[str, Tensor | Blocks]:
        """This worker's part of a checkpoint, named as by `Optimizer.training_state`.

        All strategies use the same form, so that each can resume from any other's checkpoint.
        """

    def restore(self, read: Read) -> None:
        """Load a checkpoint."""


class _StrategyModule(Protocol):
    """A module of this package, imported by the strategy's name in the config."""

    def strategy(self, settings: Train, worker: Worker) -> Strategy: ...


def make_strategy(settings: Train, worker: Worker) -> Strategy:
    """The strategy that the config names."""
    # By name, so that a run doesn't import the libraries of the others.
    module = import_module(f"moray.train.strategies.{settings.strategy}")
    return cast(_StrategyModule, module).strategy(settings, worker)
