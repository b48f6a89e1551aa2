"""What surrounds a stage: its log, its one-line error, its exit status."""

import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from moray.console import say, streams_into
from moray.errors import ConfigError, UserError, first_line
from moray.processes import die_with_parent
from moray.provenance.space import of_full_disk

# Types of stage arguments, and how they are given on a command line: paths as options, sections as
# JSON.
File = Annotated[Path, typer.Option()]
Files = Annotated[list[Path], typer.Option()]
Folder = Annotated[Path, typer.Option()]
Folders = Annotated[list[Path], typer.Option()]
Json = Annotated[dict[str, Any], typer.Option(parser=json.loads, metavar="JSON")]


@contextmanager
def stage(log: str | Path) -> Iterator[None]:
    """Run the body with its output going to the log; the user sees a failure as one line.

    Raises:
        SystemExit: with status 1, after printing the line and logging the traceback.
    """
    die_with_parent()
    with streams_into(Path(log)):
        try:
            yield
        except (UserError, ConfigError) as error:
            traceback.print_exc()
            say(_lines(error))
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        except Exception as error:
            traceback.print_exc()
            if of_full_disk(error):
                file = getattr(error, "filename", None) or "the disk"
                say(f"error: {file}: the disk is full; free space and run the same command again")
                sys.exit(1)
            name, text = type(error).__name__, first_line(error)
            what = name if text == name else f"{name}: {text}"
            say(f"error: {what}; the traceback is in {log}")
            sys.exit(1)


def command_line(function: Callable[..., None]) -> None:
    """Run a stage's function as a command whose options are the function's arguments."""
    try:
        typer.run(function)
    except (UserError, ConfigError) as error:
        sys.exit(_lines(error))


def _lines(error: UserError | ConfigError) -> str:
    return "\n".join(f"error: {line}" for line in str(error).splitlines())
