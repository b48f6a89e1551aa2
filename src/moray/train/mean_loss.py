"""The training loss that is logged."""

import torch
from torch import Tensor

from moray.workers.collectives import sum_over_workers
from moray.workers.entry import Worker


class MeanLoss:
    """The mean loss of the steps since the last line of the history.

    It depends neither on the number of workers nor on where a run was interrupted, because sums in
    fp64 are exact: they have few terms, all of them fp32.
    """

    # Its name in a checkpoint: the sum and the number of the losses, shape (2,).
    NAME = "unlogged/loss"

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._sum = torch.zeros((), dtype=torch.float64, device=worker.device)
        self._steps = 0

    def add(self, loss: Tensor) -> None:
        """Add this worker's share of a step's loss, shape ()."""
        self._sum += loss
        self._steps += 1

    def take(self) -> float:
        """The mean over all steps that were added; forgets them."""
        mean = sum_over_workers(self._sum).item() / self._steps
        self._sum.zero_()
        self._steps = 0
        return mean

    def state(self) -> dict[str, Tensor]:
        """This worker's part of a checkpoint, empty if all steps have been logged."""
        if not self._steps:
            return {}
        total = sum_over_workers(self._sum.clone()).item()
        first = self._worker.rank == 0
        return {self.NAME: torch.tensor([total, self._steps], dtype=torch.float64)} if first else {}

    def restore(self, state: Tensor) -> None:
        """Go on from what a checkpoint has."""
        total, steps = state.tolist()
        self._sum.fill_(total if self._worker.rank == 0 else 0.0)
        self._steps = int(steps)
