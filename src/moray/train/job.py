"""What a worker needs to train a run, under any launcher."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moray.config.schema import Adapter, Train


@dataclass(frozen=True)
class Job:
    """A run to be trained; the same for all workers.

    Attributes:
        start: Hugging Face folder to start from, absolute.
        store: store of the rows, absolute.
        work: folder of the run's checkpoints and history, absolute, on all nodes.
        settings: the `train` section of the config.
        adapter: the `adapter` section; None to train the whole model.
        threads: CPU threads of a worker.
        cache: folder for compiled code, absolute, shared by runs.
        task_settings: sections of the config that batches depend on, by name.
        rows_url: where rows are streamed from; None to memory-map them.
    """

    start: Path
    store: Path
    work: Path
    settings: Train
    adapter: Adapter | None
    threads: int
    cache: Path
    task_settings: dict[str, Any] = field(default_factory=dict)
    rows_url: str | None = None
