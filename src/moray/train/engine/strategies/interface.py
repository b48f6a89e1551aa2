"""The interface between the loop and a strategy."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor, nn

from moray.config.schema import Train
from moray.tasks.interface import LossModule
from moray.workers.worker import Worker

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
        """Distribute a module over the workers and make its optimizer."""

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

    def state(self) -> dict[str, Tensor]:
        """This worker's part of a checkpoint, by name.

        Trained weights under their names in the model, AdamW's state under `NAME/exp_avg` and so
        on. All strategies use the same form, so that each can resume from any other's checkpoint.
        """

    def restore(self, read: Read) -> None:
        """Load a checkpoint."""


class StrategyModule(Protocol):
    """A module of this package, imported by the strategy's name in the config."""

    def strategy(self, settings: Train, worker: Worker) -> Strategy:
        """Make the strategy for a worker."""
