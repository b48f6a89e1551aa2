"""Run a stage in a process of its own: `python tests/run_stage.py STAGE ARGUMENTS`, as JSON."""

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from pydantic import validate_call

from moray.config import extras
from moray.config.tasks import TASKS, module_of
from moray.errors import ConfigError, UserError


def stage_command(stage: str, **arguments: Any) -> list[str]:
    """The command that calls a stage's function with these arguments."""
    return [sys.executable, __file__, stage, json.dumps(arguments, default=str)]


def _module(stage: str) -> ModuleType:
    """The module of a stage: of the core, of a task, or of an extra."""
    if extra := extras.STAGES.get(stage):
        return extras.part(extra, "stage")
    if find_spec(f"moray.stages.{stage}"):
        return import_module(f"moray.stages.{stage}")
    return next(
        module_of(task, stage) for task in TASKS if find_spec(f"moray.tasks.{task}.{stage}")
    )


def main(stage: str, arguments: str) -> None:
    """Call a stage's function; a failure costs one line."""
    function = getattr(_module(stage), stage)
    try:
        # Makes paths of strings.
        validate_call(function)(**json.loads(arguments))
    except (UserError, ConfigError) as error:
        sys.exit("\n".join(f"error: {line}" for line in str(error).splitlines()))


if __name__ == "__main__":
    main(*sys.argv[1:])
