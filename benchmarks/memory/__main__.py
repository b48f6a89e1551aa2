"""Run the experiment: `python -m benchmarks.memory`."""

import tempfile
from pathlib import Path

import typer

from benchmarks.memory.worker import ENGINES, measure
from benchmarks.train.setting import prepare
from moray.config.schema.sections import Ray
from moray.workers.launch import Launch
from moray.workers.run import run_on_workers


def main(folder: Path | None = None) -> None:
    """For each strategy on 1, 2 and 4 workers: megabytes held, and megabytes by the formula."""
    print("| | 1 worker | 2 workers | 4 workers |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        home = folder or Path(temporary)
        if not (home / "tokens/manifest.json").exists():
            prepare(home)
        for engine in ENGINES:
            cells = []
            for workers in (1, 2, 4):
                ray = Ray(num_workers=workers, resources_per_worker={"CPU": 1 / workers})
                launch = Launch(ray, "benchmark", Path(temporary), "torchrun", timeout=1800)
                (held, predicted), *_ = run_on_workers(measure, (home, engine), launch)
                cells.append(f"{held / 1e6:.1f} ({predicted / 1e6:.1f})")
            print(f"| {engine} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
