"""Run the experiment: `python -m benchmarks.checkpoint`.

Switched within one run, because runs of their own differ by more than what a checkpoint costs.
"""

import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from torch import Tensor

from benchmarks.table import table
from benchmarks.train.contestants import CORES
from benchmarks.train.setting import BATCH_SIZE, BLOCK_SIZE, job, prepare
from moray.train.checkpoints.saver import Saver
from moray.train.history import History
from moray.train.launchers.torchrun import process_group, run_workers
from moray.train.launchers.work import work

STEPS = 20


def main(pairs: int = 10, folder: Path | None = None) -> None:
    """Measure tokens per second of wall time in 20 steps after a checkpoint, and in 20 without.

    Args:
        pairs: of the two, in turns; with a worker a core.
        folder: where model, tokens and compiled code are kept for another time.
    """
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        home, output = folder or Path(temporary), Path(temporary, "run/times.json")
        if not (home / "tokens/manifest.json").exists():
            prepare(home)
        output.parent.mkdir()
        command = ["-m", "benchmarks.checkpoint", "worker", str(home), str(pairs), str(output)]
        run_workers(CORES, command, max_restarts=0)
        times = json.loads(output.read_text())
    speeds = [STEPS * BATCH_SIZE * BLOCK_SIZE / (end - start) for start, end in pairwise(times)]
    measured = {f"a checkpoint every {STEPS} steps": speeds[0::2], "none": speeds[1::2]}
    print(table(measured, "tokens/s", f"a checkpoint every {STEPS} steps"))


def _worker(home: Path, pairs: int, output: Path) -> None:
    """Train, saving every second time, and write down when the lines of the history came."""
    times: list[float] = []
    append, save = History.append, Saver.save

    def timed(self: History, **line: Any) -> None:
        if "loss" in line:
            times.append(time.perf_counter())
        append(self, **line)

    def every_second(self: Saver, step: int, state: dict[str, Tensor], best: int | None) -> None:
        if step // STEPS % 2:
            save(self, step, state, best)

    History.append, Saver.save = timed, every_second  # type: ignore[method-assign]
    run = job(
        home,
        output.parent,
        1,
        # What compiles, compiles before the first line.
        max_steps=STEPS * (1 + 2 * pairs),
        micro_batch_size=BATCH_SIZE // CORES,
        logging_steps=STEPS,
        save_steps=STEPS,
    )
    with process_group("cpu") as worker:
        work(run, worker)
    if times:
        output.write_text(json.dumps(times))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        _worker(Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        typer.run(main)
