"""Run the experiment: `python -m benchmarks.train`."""

import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import typer

from benchmarks.table import alternate, shares, table
from benchmarks.train.contestants import (
    CONTESTANTS,
    LAUNCHED,
    ON_FUNCTIONS,
    PRODUCTS,
    Contestant,
    measure,
)
from benchmarks.train.setting import BLOCK_SIZE, prepare
from moray.model.forward import resolve
from moray.model.load import load_model
from moray.model.size import flops_per_token


def main(rounds: int = 3, only: list[str] | None = None, folder: Path | None = None) -> None:
    """Measure tokens per second, and the share of the peak of the cores' matrix products.

    Each contestant in each round is a process of its own, and so are the matrix products alone.

    Args:
        rounds: turns of each contestant that count.
        only: contestants to measure; all of them unless given.
        folder: where model, tokens and compiled code are kept for another time.
    """
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        home = folder or Path(temporary)
        if not (home / "tokens/manifest.json").exists():
            prepare(home)
        flops = flops_per_token(load_model(home / "model"), BLOCK_SIZE)
        print(f"precision: auto is {_resolved('auto')} here\n")
        for group in (CONTESTANTS, LAUNCHED, ON_FUNCTIONS):
            chosen = {name: each for name, each in group.items() if not only or name in only}
            if chosen:
                print(_measured(chosen, home, flops, rounds), end="\n\n", flush=True)


def _measured(contestants: Mapping[str, Contestant], home: Path, flops: float, rounds: int) -> str:
    """A line with the peaks, and a table with each contestant's share."""
    turns = {name: partial(measure, name, home) for name in [*PRODUCTS, *contestants]}
    figures = alternate(turns, rounds)
    peaks = {each.precision: figures.pop(name) for name, each in PRODUCTS.items()}
    told = (
        f"{precision} {statistics.median(peak) / 1e9:,.0f} GFLOP/s "
        f"({min(peak) / 1e9:,.0f}-{max(peak) / 1e9:,.0f})"
        for precision, peak in peaks.items()
    )
    computes_in = {name: _resolved(each.precision) for name, each in contestants.items()}
    # In tokens per second, as if the cores did nothing but the model's arithmetic.
    wholes = {name: [peak / flops for peak in peaks[computes_in[name]]] for name in contestants}
    more = {"computes in": computes_in, "share of its peak": shares(figures, wholes)}
    return (
        f"matrix products alone: {', '.join(told)}\n\n"
        f"{table(figures, 'tokens/s', list(contestants)[-1], more)}"
    )


def _resolved(precision: str) -> str:
    return resolve(precision, torch.device("cpu"))


if __name__ == "__main__":
    typer.run(main)
