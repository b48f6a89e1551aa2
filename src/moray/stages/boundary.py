"""What surrounds a stage: its log, its one-line error, its exit status."""

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moray.background import die_with_parent
from moray.console import say, streams_into
from moray.errors import ConfigError, UserError, first_line
from moray.provenance.space import of_full_disk


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


def _lines(error: UserError | ConfigError) -> str:
    return "\n".join(f"error: {line}" for line in str(error).splitlines())
