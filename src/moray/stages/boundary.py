"""The boundary of a stage: its log, its one-line error, its exit status, whether it finished.

Snakemake removes the outputs of a stage that fails or is stopped, and records its params as if it
had finished. Results of the earlier outputs would then count as up to date. So a stage marks its
beginning, and a param names an execution that didn't finish.
"""

import os
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from moray.background import die_with_parent
from moray.console import break_silence, redirect_streams, say
from moray.errors import ConfigError, StoppedError, UserError, first_line
from moray.provenance.space import is_full_disk

# Files named by a stage and what it is of: when the last execution began, if it didn't finish; and
# when the one began that the last planned execution repeats.
_UNFINISHED = Path(".snakemake/moray-unfinished")
_REPEATED = Path(".snakemake/moray-repeated")
# How often threads of libgomp look whether the others have come before they sleep: for a fraction
# of a millisecond. By default it is for several, in which they keep the others from coming if other
# processes use the cores too.
_SPINS = "10000"


def repeats(name: str, planning: bool) -> str:
    """The part of a stage's param about an execution that didn't finish; empty if all did.

    It stays the same when the stage has finished, as Snakemake compares it with the next one.

    Args:
        name: the stage and what it is of, with a slash between them.
        planning: whether the workflow is planned; a job of a cluster repeats what was planned.
    """
    for folder in (_UNFINISHED, _REPEATED) if planning else (_REPEATED,):
        if (folder / name).is_file():
            return f", after an execution of {(folder / name).read_text()} that didn't finish"
    return ""


def repeat(logs: Iterable[str]) -> None:
    """Remember which unfinished executions the stages of a workflow that starts repeat."""
    for log in logs:
        unfinished, repeated = _UNFINISHED / _name(log), _REPEATED / _name(log)
        if unfinished.is_file():
            repeated.parent.mkdir(parents=True, exist_ok=True)
            unfinished.replace(repeated)


@contextmanager
def stage(log: str | Path) -> Iterator[None]:
    """Run the body with its output going to the log; the user sees a failure as one line.

    Raises:
        SystemExit: with status 1, after printing the line and logging the traceback.
    """
    die_with_parent()
    if "OMP_WAIT_POLICY" not in os.environ:
        # Before libraries read it; workers on this machine inherit it.
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    with redirect_streams(Path(log)), break_silence(" ".join(_name(log).parts)):
        try:
            unfinished = (_UNFINISHED / _name(log)).absolute()
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}")
            yield
            unfinished.unlink()
        except StoppedError as error:
            say(str(error))
            sys.exit(1)
        except (UserError, ConfigError) as error:
            traceback.print_exc()
            say("\n".join(f"error: {line}" for line in str(error).splitlines()))
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        except Exception as error:
            traceback.print_exc()
            if is_full_disk(error):
                file = getattr(error, "filename", None) or "the disk"
                say(f"error: {file}: the disk is full; free space and run the same command again")
                sys.exit(1)
            name, text = type(error).__name__, first_line(error)
            what = name if text == name else f"{name}: {text}"
            say(f"error: {what}; the traceback is in {log}")
            sys.exit(1)


def _name(log: str | Path) -> Path:
    """The stage and what it is of, by which its log is named."""
    return Path(*Path(log).with_suffix("").parts[-2:])
