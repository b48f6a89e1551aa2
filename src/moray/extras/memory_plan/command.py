"""The command `moray plan`."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="Name of a run.")],
    configfile: Annotated[
        list[Path] | None, typer.Option(help="Overlay of the config; can be given repeatedly.")
    ] = None,
) -> None:
    """Say how much memory a worker needs to train a run, and which GPUs have it.

    Nothing has to be made before; of a model on the Hub, only its `config.json` is downloaded.
    """
    from moray.config.config_files import read_config

    experiment = read_config(configfile or [])
    # Libraries and the simulation take a while.
    typer.echo(f"{run}: computing the memory of a worker ...", err=True)
    from moray.extras.memory_plan.advice import lines
    from moray.extras.memory_plan.start import accepted_by_check, setup_of

    with _without_warnings(), setup_of(experiment, run) as setup:
        for line in lines(run, setup, accepted_by_check(experiment, run)):
            typer.echo(line)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """During the body, libraries don't warn, such as of kernels that are missing here."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
