"""Run a stage in a process of its own: `python tests/run_stage.py STAGE ARGUMENTS`, as JSON."""

import json
import sys
from importlib import import_module
from typing import Any

from pydantic import validate_call

from moray.config import extras
from moray.errors import ConfigError, UserError


def stage_command(stage: str, **arguments: Any) -> list[str]:
    """The command that calls a stage's function with these arguments."""
    return [sys.executable, __file__, stage, json.dumps(arguments, default=str)]


def main(stage: str, arguments: str) -> None:
    """Call a stage's function; a failure costs one line."""
    extra = extras.STAGES.get(stage)
    module = extras.part(extra, "stage") if extra else import_module(f"moray.stages.{stage}")
    function = getattr(module, stage)
    try:
        # Makes paths of strings.
        validate_call(function)(**json.loads(arguments))
    except (UserError, ConfigError) as error:
        sys.exit("\n".join(f"error: {line}" for line in str(error).splitlines()))


if __name__ == "__main__":
    main(*sys.argv[1:])
