"""Run the experiment: `python -m benchmarks.gpu`; `--dry-run` tries it without a GPU."""

import tempfile
from pathlib import Path

import torch
import typer

from benchmarks.gpu.contestants import CONTESTANTS, measure, prepare


def main(dry_run: bool = False) -> None:
    """Measure each contestant in a process of its own; a dry run has a tiny model and the CPU."""
    if not dry_run and not torch.cuda.is_available():
        raise typer.BadParameter("got no GPU; --dry-run tries the same on a tiny model")
    print("| | tokens/s | MFU | peak memory, GB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as folder:
        prepare(Path(folder), dry_run)
        for name in CONTESTANTS:
            figures = measure(name, Path(folder))
            if "failed" in figures:
                print(f"| {name} | {figures['failed']} | | |", flush=True)
                continue
            mfu = f"{figures['mfu']:.0%}" if "mfu" in figures else "unknown"
            memory = f"{figures['peak_gb']:.1f}" if "peak_gb" in figures else ""
            print(
                f"| {name} | {figures['tokens_per_second']:,.0f} | {mfu} | {memory} |", flush=True
            )


if __name__ == "__main__":
    typer.run(main)
