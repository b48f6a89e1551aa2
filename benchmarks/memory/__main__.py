"""Run the experiment: `python -m benchmarks.memory`."""

import json
import tempfile
from pathlib import Path

import typer

from benchmarks.memory.worker import ENGINES
from benchmarks.train.setting import prepare
from moray.train.launchers.torchrun import run_workers


def main(folder: Path | None = None) -> None:
    """For each strategy on 1, 2 and 4 workers: megabytes held, and megabytes by the formula."""
    print("| | 1 worker | 2 workers | 4 workers |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        home, output = folder or Path(temporary), Path(temporary, "found.json")
        if not (home / "tokens/manifest.json").exists():
            prepare(home)
        for engine in ENGINES:
            cells = []
            for workers in (1, 2, 4):
                command = ["-m", "benchmarks.memory.worker", str(home), engine, str(output)]
                run_workers(workers, command, max_restarts=0)
                held, predicted = json.loads(output.read_text())
                cells.append(f"{held / 1e6:.1f} ({predicted / 1e6:.1f})")
            print(f"| {engine} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
