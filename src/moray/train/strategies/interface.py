"""What the loop asks of a strategy."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer


class Strategy(Protocol):
    """Four verbs on files and modules, and the collectives that the loop needs.

    All workers call each of them, in the same order.
    """

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module whose backward pass leaves the mean of all workers' gradients."""

    def save(self, module: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        """Write weights and optimizer state into an empty folder."""

    def load(self, module: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        """Take up what `save` wrote, on this or another number of workers."""

    def export(self, folder: Path, model: nn.Module) -> None:
        """Fill a plain model, in one process, with the weights that `save` wrote."""

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Leave gradients of the backward passes inside unshared."""

    def sum(self, value: Tensor) -> Tensor:
        """The sum of all workers' values."""

    def agree(self, value: str) -> str:
        """The first worker's value."""
