"""Distributed data parallel: every worker holds all of the model."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

_WEIGHTS = "model.safetensors"
_OPTIMIZER = "optimizer.pt"


class DistributedDataParallelStrategy:
    """PyTorch's DDP; with one worker, the plain module."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    def wrap(self, module: nn.Module) -> nn.Module:
        """See `Strategy.wrap`."""
        if self.world_size == 1:
            return module
        return DistributedDataParallel(
            module,
            gradient_as_bucket_view=True,
            broadcast_buffers=False,
            # Otherwise the buckets are laid out anew after the first step, and with three or
            # more workers the order of summation, so the last bits, depends on that layout: a
            # resumed run would end with other bits.
            find_unused_parameters=True,
        )

    def save(self, module: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        """See `Strategy.save`; the first worker writes, the others hold the same."""
        if self.rank == 0:
            save_model(_model(module), str(folder / _WEIGHTS))
            torch.save(optimizer.state_dict(), folder / _OPTIMIZER)

    def load(self, module: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        """See `Strategy.load`."""
        self.export(folder, _model(module))
        state = torch.load(folder / _OPTIMIZER, map_location="cpu", weights_only=True)
        optimizer.load_state_dict(state)

    def export(self, folder: Path, model: nn.Module) -> None:
        """See `Strategy.export`."""
        load_model(model, folder / _WEIGHTS)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """See `Strategy.no_sync`."""
        if isinstance(module, DistributedDataParallel):
            return module.no_sync()
        return nullcontext()

    def sum(self, value: Tensor) -> Tensor:
        """See `Strategy.sum`."""
        if self.world_size > 1:
            dist.all_reduce(value)
        return value

    def agree(self, value: str) -> str:
        """See `Strategy.agree`."""
        values = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(values)
        return values[0]


def _model(module: nn.Module) -> nn.Module:
    plain = module.module if isinstance(module, DistributedDataParallel) else module
    return plain.get_submodule("model")
