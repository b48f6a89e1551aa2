"""Run both experiments: `python -m benchmarks.tokenize`."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.table import alternate, table
from benchmarks.tokenize.memory import peaks
from benchmarks.tokenize.speed import contestants
from moray.provenance.manifest import write_manifest
from moray.tasks.language.scratch import train_tokenizer
from moray.tasks.language.sources.python_stdlib import modules


def main(
    tokenizer: Annotated[
        Path | None,
        typer.Argument(help="Hugging Face folder with a tokenizer.json; by default, a trained one"),
    ] = None,
    rounds: int = 5,
    block_size: int = 1024,
    megabytes: Annotated[list[int] | None, typer.Option(help="Sizes for the memory table")] = None,
) -> None:
    """Measure on the standard library of the running Python, and on synthetic text."""
    sizes = megabytes if megabytes is not None else [10, 100, 1000]
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as folder:
        model = Path(folder, "model")
        if tokenizer is None:
            texts = [module["text"] for module in modules()]
            train_tokenizer(texts, vocab_size=32_000).save_pretrained(model)
        else:
            ignored = shutil.ignore_patterns("*.safetensors", "*.bin")
            shutil.copytree(tokenizer, model, ignore=ignored)
        # The facts that the stage reads of a base.
        write_manifest(model, architecture="any", isolates_documents=True)
        measured = alternate(contestants(model, block_size, Path(folder)), rounds)
        print(table(measured, "tokens/s", "moray"), flush=True)
        print("\n| text | peak memory | ÷ the first |\n|---|---|---|", flush=True)
        first = None
        for size, peak in peaks(model, block_size, Path(folder), sizes):
            first = first or peak
            print(f"| {size:,} MB | {peak:,.0f} MB | {peak / first:.2f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
