"""Run the experiment: `python -m benchmarks.gpu`; `--dry-run` tries it without a GPU."""

import tempfile
from pathlib import Path
from typing import Any

import torch
import typer

from benchmarks.gpu.contestants import CONTESTANTS, PRODUCTS, measure
from benchmarks.gpu.setting import prepare
from moray.model.forward import resolve
from moray.train.performance import peak_flops


def main(dry_run: bool = False, only: list[str] | None = None) -> None:
    """Measure each contestant in a process of its own.

    Args:
        dry_run: take a tiny model, and the CPU where there is no GPU.
        only: beginnings of the names of contestants; all of them unless given.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not dry_run and device.type == "cpu":
        raise typer.BadParameter("no GPU was found; --dry-run tries the same on a tiny model")
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as folder:
        prepare(Path(folder), dry_run)
        peak = measure(PRODUCTS, Path(folder))["flops"]
        stated = peak_flops(device)
        known = f"{stated / 1e12:,.0f} by its maker" if stated else "its maker's figure unknown"
        print(f"{PRODUCTS}: {peak / 1e12:,.3g} TFLOP/s in {resolve('auto', device)}; {known}\n")
        print("| | tokens/s | share of that peak | MFU | peak memory, GB |\n|---|---|---|---|---|")
        for name in CONTESTANTS:
            if name != PRODUCTS and (not only or name.startswith(tuple(only))):
                print(_row(name, measure(name, Path(folder)), peak, stated), flush=True)


def _row(name: str, figures: dict[str, Any], peak: float, stated: float | None) -> str:
    if "failed" in figures:
        return f"| {name} | {figures['failed']} | | | |"
    flops = figures.get("flops")
    cells = [
        name,
        f"{figures['tokens_per_second']:,.0f}",
        f"{flops / peak:.0%}" if flops else "",
        f"{flops / stated:.0%}" if flops and stated else "",
        f"{figures['peak_gb']:.1f}" if "peak_gb" in figures else "",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    typer.run(main)
