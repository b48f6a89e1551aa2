"""The command `moray doctor`."""

import os
import tempfile
from pathlib import Path

import typer


def command() -> None:
    """Check what this machine needs to train: a line for each thing, `ok` or what to do.

    The exit status is 1 if something has to be done; the last line then names the log with what
    libraries printed.
    """
    from moray.console import redirect_streams, say
    from moray.extras.doctor.checks import checks
    from moray.project import LOCK

    # A project may have a lock file of its own.
    own = Path("envs/requirements.txt")
    sound = True
    # Not in this folder, which may be one that can't be written to.
    descriptor, name = tempfile.mkstemp(prefix="moray-doctor-", suffix=".log")
    os.close(descriptor)
    log = Path(name)
    with redirect_streams(log):
        for check in checks(Path(), own if own.exists() else LOCK):
            state = "ok" if check.remedy is None else "!!"
            remedy = "" if check.remedy is None else f"; {check.remedy}"
            say(f"{state}  {check.name}: {check.finding}{remedy}")
            sound = sound and check.remedy is None
    if sound:
        log.unlink()
        return
    typer.echo(f"log: {log}", err=True)
    raise typer.Exit(1)
