"""How parameters, gradients and optimizer state are distributed over the workers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moray.config import extras
from moray.config.schema.train import Train
from moray.train.optimizer import Moment, Optimizer, trained_parameters
from moray.train.task import LossModule
from moray.workers.entry import Worker

# Fills tensors in place, by their names, from a checkpoint.
Read = Callable[[dict[str, Tensor]], None]


class Strategy(ABC):
    """A way to distribute them; what isn't abstract is for engines with PyTorch's own optimizer.

    All workers call each method, in the same order.

    Attributes:
        module: computes the loss of a batch; set by `wrap`.
        loss_module: the module that was wrapped, or is the same; set by `wrap`.
        loads_weights: whether this worker loads the initial weights; otherwise it gets them from
            the first worker.
    """

    module: nn.Module
    loss_module: LossModule
    loads_weights = True
    _model: PreTrainedModel
    _torch_optimizer: torch.optim.Optimizer

    def __init__(self, settings: Train, worker: Worker) -> None:
        self._settings = settings
        self._worker = worker
        self._optimizer = Optimizer(settings)

    @abstractmethod
    def wrap(self, module: LossModule) -> None:
        """Distribute a module over the workers and make its optimizer.

        Raises:
            UserError: if the strategy can't distribute the model, or over so many workers, or if a
                library is missing.
        """

    def _make_optimizer(self, model: PreTrainedModel) -> None:
        self._model = model
        self._torch_optimizer = self._optimizer.make(model)
        self._optimizer.make_state(self._torch_optimizer, trained_parameters(model).values())

    @abstractmethod
    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """Context of a micro-batch's forward and backward pass; the last one reduces gradients."""

    def backward(self, loss: Tensor) -> None:
        """Accumulate a micro-batch's gradients; they are averaged over workers."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float) -> Tensor:
        """Clip the gradients, take an optimizer step, clear the gradients.

        Returns:
            The norm of the gradients before clipping, shape (). The step is taken even if the norm
            isn't finite where checking it would make the worker wait for its device.
        """
        return self._optimizer.step(self._model, self._torch_optimizer, learning_rate)

    @abstractmethod
    def state(self) -> dict[str, Tensor | Moment]:
        """This worker's part of a checkpoint, named as by `Optimizer.training_state`.

        All strategies use the same form, so that each can resume from any other's checkpoint.
        """

    def restore(self, read: Read) -> None:
        """Load a checkpoint."""
        self._optimizer.restore(self._model, self._torch_optimizer, read)


def make_strategy(settings: Train, worker: Worker) -> Strategy:
    """The strategy that the config names."""
    name = settings.strategy
    # By name, so that a run doesn't import the libraries of the others.
    if folder := extras.STRATEGIES.get(name):
        module = extras.part(folder, "strategy")
    else:
        module = import_module(f"moray.train.strategies.{name}")
    strategy: Strategy = module.strategy(settings, worker)
    return strategy
