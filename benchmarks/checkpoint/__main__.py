"""Run the experiment: `python -m benchmarks.checkpoint`."""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import typer

from benchmarks.table import alternate, table
from benchmarks.train.contestants import CORES
from benchmarks.train.setting import BATCH_SIZE, BLOCK_SIZE, WARM_UP, job, prepare
from moray.train.history import History
from moray.train.launchers.torchrun import process_group, run_workers
from moray.train.launchers.work import work

STEPS = 80


def main(rounds: int = 3, folder: Path | None = None) -> None:
    """Measure tokens per second of wall time, saving included, with a worker a core."""
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        home = folder or Path(temporary)
        if not (home / "tokens/manifest.json").exists():
            prepare(home)
        contestants = {
            "a checkpoint every 20 steps": partial(_measure, home, 20),
            "none": partial(_measure, home, 10**6),
        }
        print(table(alternate(contestants, rounds), "tokens/s", "a checkpoint every 20 steps"))


def _measure(home: Path, save_steps: int) -> float:
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        output = Path(temporary, "seconds")
        command = ["-m", "benchmarks.checkpoint", "worker", str(home), str(save_steps), str(output)]
        run_workers(CORES, command, max_restarts=0)
        return BATCH_SIZE * BLOCK_SIZE * STEPS / float(output.read_text())


def _worker(home: Path, save_steps: int, output: Path) -> None:
    """Train, and write down the seconds between the first line of the history and the last."""
    times: list[float] = []
    append = History.append

    def timed(self: History, **line: Any) -> None:
        if "loss" in line:
            times.append(time.perf_counter())
        append(self, **line)

    History.append = timed  # type: ignore[method-assign]
    run = job(
        home,
        output.parent,
        1,
        max_steps=WARM_UP + STEPS,
        micro_batch_size=BATCH_SIZE // CORES,
        save_steps=save_steps,
    )
    with process_group("cpu") as place:
        work(run, place)
    if times:
        output.write_text(str(times[-1] - times[0]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        _worker(Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        typer.run(main)
