"""How much a stage compares: as much as takes 3 s, or 2 % of its own time if that is more."""

from pathlib import Path

import psutil
import torch

from moray.model.folder import whole_model_and_adapters
from moray.model.shapes import num_parameters, shapes_in

# Rough FLOP/s of a core and of a GPU (what a core does for 0.5 B parameters), and bytes that are
# loaded in a second from files that the stage has just read or written.
_FLOPS_PER_CORE, _FLOPS_PER_GPU, _BYTES_PER_SECOND = 50e9, 50e12, 4e9
_FEW_SECONDS, _SHARE = 3.0, 0.02

TOO_LARGE = "loading the model again takes too much memory, or time for so short a stage"


def stage_seconds(flops: float, device: torch.device, threads: int) -> float:
    """About how long a stage of so many FLOPs takes on one worker."""
    return flops / _speed(device, threads)


def num_affordable(
    folder: Path,
    seconds: float,
    device: torch.device,
    flops: float | None = None,
    threads: int | None = None,
) -> int:
    """How many items can be compared with the model in a folder; 0 if it is too large.

    Args:
        folder: a full model in fp32 is loaded from it, or an adapter on its base.
        seconds: that the stage takes by itself.
        flops: FLOPs for an item; by default, those of a forward pass for a token.
        threads: CPU threads; by default, all of PyTorch's.
    """
    whole, _ = whole_model_and_adapters(folder)
    count = num_parameters(shapes_in(whole))
    size = 4 * count
    cuda = device.type == "cuda"
    room = torch.cuda.mem_get_info(device)[0] if cuda else psutil.virtual_memory().available
    # The weights, and their gradients or what loading them takes.
    if 2 * size > room:
        return 0
    left = max(_FEW_SECONDS, _SHARE * seconds) - size / _BYTES_PER_SECOND
    return max(0, int(left * _speed(device, threads) / (flops or 2 * count)))


def _speed(device: torch.device, threads: int | None) -> float:
    if device.type == "cuda":
        return _FLOPS_PER_GPU
    return _FLOPS_PER_CORE * (threads or torch.get_num_threads())
