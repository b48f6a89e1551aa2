"""Running statistics of BatchNorm layers, which are neither trained nor the same on all workers."""

import torch
from torch import Tensor, nn

from moray.workers.collectives import sum_over_workers
from moray.workers.entry import Worker

_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_MEANS = ("running_mean", "running_var")


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    """The running statistics of a model, by name; they share memory with it."""
    return {
        f"{name}.{key}": value
        for name, module in model.named_modules()
        if isinstance(module, _LAYERS)
        for key, value in module.named_buffers(recurse=False)
    }


class Statistics:
    """The running statistics of a model that is trained on several workers.

    Each layer normalises with the statistics of its own worker's micro-batch, and updates its
    running statistics with them. Their mean over the workers, after each step, is what a single
    process would have had with micro-batches of the same size, up to their order.
    """

    def __init__(self, model: nn.Module, worker: Worker) -> None:
        self.tensors = statistics_of(model)
        self._worker = worker
        self._means = [
            value for name, value in self.tensors.items() if name.rpartition(".")[2] in _MEANS
        ]

    @torch.no_grad()
    def average(self) -> None:
        """Replace them by their mean over the workers; models without any communicate nothing."""
        if not self._means or self._worker.world_size == 1:
            return
        flat = torch.cat([value.flatten() for value in self._means])
        flat = sum_over_workers(flat) / self._worker.world_size
        sizes = [value.numel() for value in self._means]
        for value, mean in zip(self._means, torch.split(flat, sizes), strict=True):
            value.copy_(mean.view_as(value))

    def state(self) -> dict[str, Tensor]:
        """This worker's part of a checkpoint: all workers have the same, and the first saves it."""
        return self.tensors if self._worker.rank == 0 else {}
