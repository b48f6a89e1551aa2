"""Run both experiments: `python -m benchmarks.tokenize TOKENIZER_FOLDER`."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.table import alternate, table
from benchmarks.tokenize.memory import peaks
from benchmarks.tokenize.speed import contestants
from moray.provenance.manifest import write_manifest


def main(
    tokenizer: Annotated[Path, typer.Argument(help="Hugging Face folder with a tokenizer.json")],
    rounds: int = 5,
    block_size: int = 1024,
    megabytes: Annotated[list[int] | None, typer.Option(help="Sizes for the memory table")] = None,
) -> None:
    """Measure on the standard library of the running Python, and on synthetic text."""
    sizes = megabytes if megabytes is not None else [10, 100, 1000]
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as folder:
        tokenizer = _as_base(tokenizer, Path(folder, "model"))
        measured = alternate(contestants(tokenizer, block_size, Path(folder)), rounds)
        print(table(measured, "tokens/s", "moray"), flush=True)
        print("\n| text | peak memory | ÷ the first |\n|---|---|---|", flush=True)
        first = None
        for size, peak in peaks(tokenizer, block_size, Path(folder), sizes):
            first = first or peak
            print(f"| {size:,} MB | {peak:,.0f} MB | {peak / first:.2f} |", flush=True)


def _as_base(tokenizer: Path, folder: Path) -> Path:
    """A copy of the tokenizer's folder, with the facts that the stage reads of a base."""
    shutil.copytree(tokenizer, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    write_manifest(folder, architecture="any", isolates_documents=True)
    return folder


if __name__ == "__main__":
    typer.run(main)
