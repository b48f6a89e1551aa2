"""How much a stage compares: as much as takes 3 s, or 2 % of its own time if that is more."""

import time
from functools import cache
from pathlib import Path
from statistics import median

import psutil
import torch

from moray.model.folder import whole_model_and_adapters
from moray.model.shapes import num_parameters, shapes_in

# Rough FLOP/s of a core and of a GPU, and bytes that are loaded in a second from files that the
# stage has just read or written.
_FLOPS_PER_CORE, _FLOPS_PER_GPU, _BYTES_PER_SECOND = 50e9, 50e12, 4e9
_FEW_SECONDS, _SHARE = 3.0, 0.02
# Models with fewer parameters take no time, so nothing is measured for them.
_FEW_PARAMETERS = 50e6
# A model is that much slower than the products of its matrices.
_OTHER_OPERATIONS = 1.25
_SIDE, _TOKENS = 4096, 64

TOO_LARGE = "loading the model again takes too much memory, or time for so short a stage"


def stage_seconds(flops: float, device: torch.device, threads: int) -> float:
    """About how long a stage of so many FLOPs takes on one worker."""
    return flops / _nominal(device, threads)


def num_affordable(
    folder: Path,
    seconds: float,
    device: torch.device,
    flops: float | None = None,
    threads: int | None = None,
    num_models: int = 1,
) -> int:
    """How many items can be compared with the model in a folder; 0 if it is too large.

    Args:
        folder: a full model in fp32 is loaded from it, or an adapter on its base.
        seconds: that the stage takes by itself.
        flops: FLOPs for an item; by default, those of a forward pass for a token.
        threads: CPU threads; by default, all of PyTorch's.
        num_models: how many such models are compared one after the other.
    """
    whole, _ = whole_model_and_adapters(folder)
    count = num_parameters(shapes_in(whole))
    size = 4 * count
    cuda = device.type == "cuda"
    room = torch.cuda.mem_get_info(device)[0] if cuda else psutil.virtual_memory().available
    # The weights, and their gradients or what loading them takes.
    if 2 * size > room:
        return 0
    flops = flops or 2 * count
    nominal = _nominal(device, threads)
    # On CPUs, other processes may run too.
    measures = not cuda and count > _FEW_PARAMETERS
    speed = _measured_speed(threads or torch.get_num_threads()) if measures else nominal
    # Other processes that slow products down also slow down loading.
    loading = size / _BYTES_PER_SECOND * max(1, nominal / speed)
    left = max(_FEW_SECONDS, _SHARE * seconds) / num_models - loading
    return max(0, int(left * speed / flops))


def num_rows_affordable(folder: Path, seconds: float, tokens: int, num_models: int) -> int:
    """How many rows can be compared on a CPU with each of so many models like that in a folder.

    Args:
        seconds: that the stage takes by itself.
        tokens: a row takes a model about as much as so many tokens.
    """
    flops = 2.0 * tokens * num_parameters(shapes_in(folder))
    return num_affordable(folder, seconds, torch.device("cpu"), flops, num_models=num_models)


def _nominal(device: torch.device, threads: int | None) -> float:
    if device.type == "cuda":
        return _FLOPS_PER_GPU
    return _FLOPS_PER_CORE * (threads or torch.get_num_threads())


@cache
def _measured_speed(threads: int) -> float:
    """FLOP/s of a model with so many threads, by products that are large for a cache."""
    before = torch.get_num_threads()
    weights, values = torch.ones(_SIDE, _SIDE), torch.ones(_TOKENS, _SIDE)
    times = []
    torch.set_num_threads(threads)
    for _ in range(4):
        began = time.perf_counter()
        values @ weights
        times.append(time.perf_counter() - began)
    torch.set_num_threads(before)
    # The first one wakes the threads.
    return 2 * _TOKENS * _SIDE**2 / median(times[1:]) / _OTHER_OPERATIONS
