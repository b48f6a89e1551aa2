"""Run the experiment: `python -m benchmarks.recovery`."""

import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path

import psutil
import typer

from benchmarks.train.contestants import CORES
from benchmarks.train.setting import BATCH_SIZE, prepare, spec_of
from moray.config.schema.sections import Ray
from moray.train.driver import train_on_workers
from moray.train.history import HISTORY, read_history
from moray.train.spec import RunSpec

SAVE_STEPS, KILLS, SEED = 10, 5, 0
# Steps between two kills, so that each finds a run that has saved since the last.
_APART = (15, 35)


def main(folder: Path | None = None) -> None:
    """SIGKILL one of the workers five times in one run; seconds until the next step is done."""
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        home = folder or Path(temporary)
        if not (home / "tokens/manifest.json").exists():
            prepare(home)
        work = Path(temporary, "work")
        work.mkdir()
        run = spec_of(
            home,
            work,
            Ray(num_workers=CORES, max_failures=KILLS),
            max_steps=10**4,
            micro_batch_size=BATCH_SIZE // CORES,
            save_steps=SAVE_STEPS,
            logging_steps=1,
            compile=False,
        )
        # A daemon: the run is left where it is when all kills are done.
        training = threading.Thread(target=train_on_workers, args=(run,), daemon=True)
        # Where Ray, too, writes what it says of each kill.
        with redirect_stdout(sys.stderr):
            training.start()
            lines = _measure(run)
    print("\n".join(lines))


def _measure(run: RunSpec) -> list[str]:
    """A line for each kill, and their summary."""
    draw, seconds, step = random.Random(SEED), [], 0
    lines = []
    for number in range(1, KILLS + 1):
        target = step + draw.randint(*_APART)
        while (last := _last_step(run)) < target:
            time.sleep(0.01)
        os.kill(draw.choice(_workers()), signal.SIGKILL)
        killed, began = time.perf_counter(), _began(run)
        while _began(run) == began:
            time.sleep(0.01)
        resumed = _last_step(run)
        while (step := _last_step(run)) <= resumed:
            time.sleep(0.01)
        seconds.append(time.perf_counter() - killed)
        lines.append(
            f"- kill {number}: at step {last}, resumed from {resumed}, {last - resumed} steps "
            f"lost, next step after {seconds[-1]:.1f} s"
        )
    median, longest = statistics.median(seconds), max(seconds)
    return [*lines, f"\n**Median {median:.1f} s, longest {longest:.1f} s.**"]


def _began(run: RunSpec) -> int:
    """Which file the history is: an attempt begins by writing it anew."""
    return (run.work / HISTORY).stat().st_ino


def _last_step(run: RunSpec) -> int:
    lines = read_history(run.work / HISTORY)
    return max((line["step"] for line in lines if "loss" in line), default=0)


def _workers() -> list[int]:
    family = psutil.Process().children(recursive=True)
    return [each.pid for each in family if "RayTrainWorker" in "".join(each.cmdline()[:1])]


if __name__ == "__main__":
    typer.run(main)
