"""What the loop asks of a strategy."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor, nn

from moray.config.schema import Train
from moray.model.loss import TokenLoss
from moray.workers.worker import Worker

# Fills tensors in place, by their names, from a checkpoint.
Read = Callable[[dict[str, Tensor]], None]


class Strategy(Protocol):
    """How parameters, gradients and optimizer state are spread over the workers.

    All workers call each verb, in the same order.

    Attributes:
        module: what makes the loss of a batch; there after `wrap`.
        loads_weights: whether this worker needs the weights of the start; one that doesn't gets
            them from the first.
    """

    module: nn.Module
    loads_weights: bool

    def __init__(self, settings: Train, worker: Worker) -> None: ...

    def wrap(self, module: TokenLoss) -> None:
        """Spread a module over the workers and make its optimizer."""

    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a micro-batch; gradients meet at the last."""

    def backward(self, loss: Tensor) -> None:
        """Add a micro-batch's gradients; over workers, the mean is taken."""

    def step(self, learning_rate: float) -> Tensor:
        """Clip, take an optimizer step, forget the gradients.

        Returns:
            The norm of the gradients before, shape (). Where a worker would have to wait for its
            device to see that it isn't finite, the step was taken all the same.
        """

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds, by name: this worker's part of it.

        Trained weights under the names of the model, AdamW's state under `NAME/exp_avg` and so
        on; in one form for all strategies, so that any goes on from any other's checkpoint.
        """

    def restore(self, read: Read) -> None:
        """Take up what a checkpoint holds."""
