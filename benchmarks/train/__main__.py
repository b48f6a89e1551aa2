"""Run the experiment: `python -m benchmarks.train`."""

import tempfile
from functools import partial
from pathlib import Path

import typer

from benchmarks.table import alternate, table
from benchmarks.train.contestants import CONTESTANTS, LAUNCHED, ON_FUNCTIONS, measure
from benchmarks.train.setting import prepare


def main(rounds: int = 3, only: list[str] | None = None, folder: Path | None = None) -> None:
    """Measure tokens per second; each contestant in each round is a process of its own.

    Args:
        rounds: turns of each contestant that count.
        only: contestants to measure; all of them unless given.
        folder: where model, tokens and compiled code are kept for another time.
    """
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        home = folder or Path(temporary)
        if not (home / "tokens/manifest.json").exists():
            prepare(home)
        for group in (CONTESTANTS, LAUNCHED, ON_FUNCTIONS):
            names = [name for name in group if not only or name in only]
            measured = alternate({name: partial(measure, name, home) for name in names}, rounds)
            if names:
                print(table(measured, "tokens/s", names[-1]), end="\n\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
