"""The command `moray import`."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    file: Annotated[Path, typer.Argument(help="Config of axolotl or LLaMA-Factory, in YAML.")],
    num_gpus: Annotated[
        int, typer.Option(min=1, help="Number of GPUs that it is for, each with its own batch.")
    ] = 1,
) -> None:
    """Print another tool's config as an overlay: `moray import FILE > config/mine.yaml`.

    Comments name what has no effect here, and what has another one. If a key has no counterpart,
    nothing is printed but an error that names all such keys. Repositories of the Hub are pinned to
    their newest commits, if it can be reached.
    """
    from moray.extras.importing.convert import convert

    typer.echo(convert(file, num_gpus, pins=True), nl=False)
