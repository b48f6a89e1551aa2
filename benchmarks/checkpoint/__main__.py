"""Run the experiment: `python -m benchmarks.checkpoint`.

Switched within one run, because runs of their own differ by more than what a checkpoint costs.
"""

import tempfile
from itertools import pairwise
from pathlib import Path

import typer

from benchmarks.checkpoint.worker import STEPS, Run, times_of_lines
from benchmarks.table import table
from benchmarks.train.contestants import CORES
from benchmarks.train.setting import BATCH_SIZE, BLOCK_SIZE, prepare
from moray.config.schema.sections import Ray
from moray.workers.launch import Launch
from moray.workers.run import run_on_workers


def main(pairs: int = 10, folder: Path | None = None) -> None:
    """Measure tokens per second of wall time in 20 steps after a checkpoint, and in 20 without.

    Args:
        pairs: of the two, in turns; with a worker a core.
        folder: where model, tokens and compiled code are kept for another time.
    """
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        home = folder or Path(temporary)
        if not (home / "tokens/manifest.json").exists():
            prepare(home)
        launch = Launch(
            Ray(num_workers=CORES), "benchmark", Path(temporary), "torchrun", timeout=1800
        )
        times, *_ = run_on_workers(times_of_lines, Run(home, pairs, Path(temporary, "run")), launch)
    speeds = [STEPS * BATCH_SIZE * BLOCK_SIZE / (end - start) for start, end in pairwise(times)]
    measured = {f"a checkpoint every {STEPS} steps": speeds[0::2], "none": speeds[1::2]}
    print(table(measured, "tokens/s", f"a checkpoint every {STEPS} steps"))


if __name__ == "__main__":
    typer.run(main)
