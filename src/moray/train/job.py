"""What a worker needs to know to train, whoever starts it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from moray.config.schema import Train


@dataclass(frozen=True)
class Job:
    """A run to be trained; the same for all workers.

    Attributes:
        start: Hugging Face folder to start from, absolute.
        tokens: token store, absolute.
        work: folder of the run's checkpoints and history, absolute, on all nodes.
        settings: the `train` section of the config.
        threads: CPU threads of a worker.
        rows_url: where rows are streamed from; None to map them into memory.
    """

    start: Path
    tokens: Path
    work: Path
    settings: Train
    threads: int
    rows_url: str | None = None


@dataclass(frozen=True)
class Place:
    """Where a worker stands among the others.

    Attributes:
        rank: from 0.
        world_size: number of workers.
        device: what it computes on.
        committed: called by every worker with the steps done, after a checkpoint was committed.
    """

    rank: int
    world_size: int
    device: torch.device
    committed: Callable[[int], None]
