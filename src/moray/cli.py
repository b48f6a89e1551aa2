"""The command `moray`, for what isn't a result of the workflow."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from moray.config import extras
from moray.errors import ConfigError, UserError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
# A folder of images that is gone would cost a line for each.
_MOST_MISSING = 10


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except (ConfigError, UserError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


@app.callback()
def main() -> None:
    """Tools beside the workflow, which is run by `snakemake`."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make; it may exist if it is empty.")],
) -> None:
    """Make a project folder: a Snakefile that uses moray as a module, config, profiles."""
    from moray.project import init

    with _errors_in_one_line():
        init(folder)
    typer.echo(f"made {folder}; next:\n  cd {folder}\n  snakemake finetune")


@app.command()
def verify(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Models, datasets, stores or eval.json; by default, all in results."),
    ] = None,
) -> None:
    """Check results and what they were made from by their SHA-256, back to the source files.

    Prints a line for each file that has changed; the exit status is then 1.
    """
    from moray.provenance.lineage import results_below, verify

    with _errors_in_one_line():
        verification = verify(paths or results_below(Path("results")))
    for line in verification.broken:
        typer.echo(f"broken: {line}")
    for path in verification.missing[:_MOST_MISSING]:
        typer.echo(f"not checked: {path} no longer exists")
    if more := len(verification.missing[_MOST_MISSING:]):
        typer.echo(f"not checked: {more:,} more files aren't there any more")
    count, broken = len(verification.checked), len(verification.broken)
    typer.echo(f"{count} result{'s' * (count != 1)} checked, {broken or 'nothing'} broken")
    raise typer.Exit(1 if broken else 0)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="Folder of results of a workflow.")] = Path(
        "results"
    ),
    output: Annotated[
        Path | None, typer.Option(help="File to write; by default, report.html in the folder.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder of the checkpoints, if it isn't in the folder.")
    ] = None,
    configfile: Annotated[
        list[Path] | None,
        typer.Option(help="Overlay of the config with a title; can be given repeatedly."),
    ] = None,
) -> None:
    """Write the report of what is there, with runs that are unfinished or not evaluated.

    `snakemake report` first makes what is missing. Title and text are those of the section
    `report` in `config/config.yaml`, if there is such a file.
    """
    from moray.config.config_files import read_report
    from moray.report.page import write_page
    from moray.results import load

    page = output or results / "report.html"
    with _errors_in_one_line():
        all_results = load(results, state)
        write_page(all_results, page, read_report(configfile or []))
    for run in all_results.files.values():
        for error in run.damaged.values():
            typer.echo(f"not shown: {error}", err=True)
    typer.echo(page)


for _name, _folder in extras.COMMANDS.items():
    if extras.is_there(_folder):
        app.command(_name)(_errors_in_one_line()(extras.part(_folder, "command").command))
