"""Run the experiment: `python -m benchmarks.gpu`; `--model tiny` tries it without a GPU."""

import statistics
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import torch
import typer

from benchmarks.gpu.contestants import CONTESTANTS
from benchmarks.gpu.setting import MODELS, prepare, sizes_of
from benchmarks.peak import product_peak, product_sizes
from benchmarks.turns import Figures, alternate
from moray.model.forward import resolve
from moray.model.load import empty_model
from moray.train.performance import peak_flops

_TITLES = "tokens/s, median", "range", "share of that peak", "MFU", "host", "peak memory, GB"


def main(
    only: list[str] | None = None,
    rows: int | None = None,
    rounds: int = 3,
    together: int = 6,
    folder: Path | None = None,
) -> None:
    """Measure contestants, each in a process of its own.

    Args:
        only: patterns of contestants, `MODEL/NAME`, with `*` for any text; all of those with GPT-2
            unless given.
        rows: rows of a step, all in one forward pass; those of the model unless given.
        rounds: turns of each.
        together: how many contestants are in memory at the same time.
        folder: where models, rows and compiled code are kept for another time.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = [
        (model, name)
        for model in MODELS
        for name in CONTESTANTS
        if any(fnmatchcase(f"{model}/{name}", pattern) for pattern in only or ["gpt2/*"])
    ]
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        homes = {
            model: (folder or Path(temporary)) / f"{model}-{rows or 'default'}"
            for model, _ in found
        }
        peaks = {}
        for model, home in homes.items():
            if not (home / "tokens/manifest.json").exists():
                prepare(home, model, rows)
            peaks[model] = _peak(model, home, device)
        print(f"\n| | {' | '.join(_TITLES)} |\n{'|---' * (len(_TITLES) + 1)}|")
        for start in range(0, len(found), together):
            commands = {
                f"{model}/{name}": [
                    *(sys.executable, "-m", "benchmarks.gpu.contestants"),
                    *(name, str(homes[model])),
                ]
                for model, name in found[start : start + together]
            }
            for name, figures in alternate(commands, rounds).items():
                peak = peaks[name.partition("/")[0]]
                print(_row(name, figures, peak, peak_flops(device)), flush=True)


def _peak(model: str, home: Path, device: torch.device) -> float:
    """FLOP/s of the fastest of a model's matrix products alone, which are printed."""
    sizes, precision = sizes_of(home), resolve("auto", device)
    tokens = sizes.micro_batch_size * sizes.block_size
    peak = product_peak(product_sizes(empty_model(home / "model"), tokens), precision, device)
    stated = peak_flops(device)
    known = f"{stated / 1e12:,.0f} by its maker" if stated else "its maker's figure unknown"
    print(
        f"{model}, {sizes.rows} rows of {sizes.block_size} tokens: matrix products alone "
        f"{peak / 1e12:,.3g} TFLOP/s in {precision}; {known}"
    )
    return peak


def _row(name: str, figures: list[Figures], peak: float, stated: float | None) -> str:
    if failed := [each["failed"] for each in figures if "failed" in each]:
        return f"| {name} | {failed[0]} | | | | | |"
    speeds = [each["tokens_per_second"] for each in figures]
    flops = statistics.median(each.get("flops", 0.0) for each in figures)
    cells = [
        name,
        f"{statistics.median(speeds):,.0f}",
        f"{min(speeds):,.0f}-{max(speeds):,.0f}",
        f"{flops / peak:.0%}" if flops else "",
        f"{flops / stated:.0%}" if flops and stated else "",
        f"{figures[-1]['host']:.0%}" if "host" in figures[-1] else "",
        f"{figures[-1]['peak_gb']:.1f}" if "peak_gb" in figures[-1] else "",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    typer.run(main)
