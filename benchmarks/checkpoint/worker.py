"""A run that saves in every second stretch of its steps."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.train.contestants import CORES
from benchmarks.train.setting import BATCH_SIZE, spec_of
from moray.config.schema.sections import Ray
from moray.train.checkpoint.save import Saver
from moray.train.history import History
from moray.train.loop import train
from moray.workers.entry import Worker

STEPS = 20


@dataclass(frozen=True)
class Run:
    """Where model and tokens are, how many pairs of stretches to run, and where to save."""

    home: Path
    pairs: int
    work: Path


def times_of_lines(run: Run, worker: Worker) -> list[float]:
    """Train, saving every second time; gives when the lines of the history came."""
    times: list[float] = []
    append, save = History.append, Saver.save

    def timed(self: History, **line: Any) -> None:
        if "loss" in line:
            times.append(time.perf_counter())
        append(self, **line)

    def every_second(self: Saver, step: int, state: Mapping[str, Any], best: int | None) -> None:
        if step // STEPS % 2:
            save(self, step, state, best)

    History.append, Saver.save = timed, every_second  # type: ignore[method-assign]
    run.work.mkdir(exist_ok=True)
    settings = spec_of(
        run.home,
        run.work,
        Ray(num_workers=1),
        # What compiles, compiles before the first line.
        max_steps=STEPS * (1 + 2 * run.pairs),
        micro_batch_size=BATCH_SIZE // CORES,
        logging_steps=STEPS,
        save_steps=STEPS,
    )
    train(settings, worker)
    return times
