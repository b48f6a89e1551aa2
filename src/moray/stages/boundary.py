"""The edge between a stage and whoever started it: the log, the one-line error, the end."""

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

# What stages take, and how it is given on a command line: paths as options, sections as JSON.
File = Annotated[Path, typer.Option()]
Folder = Annotated[Path, typer.Option()]
Json = Annotated[dict[str, Any], typer.Option(parser=json.loads, metavar="JSON")]


@contextmanager
def stage(log: str | Path) -> Iterator[None]:
    """Run the body with its streams in the log; a failure costs the user one line.

    Raises:
        SystemExit: with status 1, after the line was printed and the trace was logged.
    """
    die_with_parent()
    with streams_into(Path(log)):
        try:
            yield
        except (UserError, ConfigError) as error:
            traceback.print_exc()
            say(_told(error))
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        except Exception as error:
            traceback.print_exc()
            if of_full_disk(error):
                file = getattr(error, "filename", None) or "the disk"
                say(f"error: {file}: got a full disk; free some and run the same command again")
                sys.exit(1)
            name, text = type(error).__name__, first_line(error)
            what = name if text == name else f"{name}: {text}"
            say(f"error: {what}; the trace is in {log}")
            sys.exit(1)


def command_line(function: Callable[..., None]) -> None:
    """Make a stage's function a command, its arguments options."""
    try:
        typer.run(function)
    except (UserError, ConfigError) as error:
        sys.exit(_told(error))


def _told(error: UserError | ConfigError) -> str:
    return "\n".join(f"error: {line}" for line in str(error).splitlines())
