"""Where a process stands among the workers."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Worker:
    """Where a worker stands among the others.

    Attributes:
        rank: from 0.
        world_size: number of workers.
        device: what it computes on.
    """

    rank: int
    world_size: int
    device: torch.device
