"""The position of a process among the workers."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Worker:
    """A worker's position among the others.

    Attributes:
        rank: rank of the worker, from 0.
        world_size: number of workers.
        device: device that it computes on.
    """

    rank: int
    world_size: int
    device: torch.device
