"""What a workflow prints: one line for each finished stage, besides what the stages say themselves.

Snakemake finds plugins by the name of the module; `profiles/default` selects this one. All that
Snakemake would print is in its own log, `.snakemake/log`.
"""

import ast
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from logging import WARNING, LogRecord
from pathlib import Path
from typing import Any, TextIO

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

# After the last job of a workflow of which some failed.
_ENDS_WITH_FAILURES = "Exiting because a job execution failed"
# What Snakemake says about itself, by the first words.
_ABOUT_ITSELF = (
    "Assuming unrestricted shared filesystem",
    "Building DAG of jobs",
    "Using shell",
    "Conda environments: ignored",
    "Select jobs to execute",
    "Will exit after finishing",
    "Shutting down",
    _ENDS_WITH_FAILURES,
    "WorkflowError:\nAt least one job did not complete",
)
# Of a job whose stage has said what is wrong.
_OF_A_SCRIPT = ("RuleException", "returned non-zero exit status")
# Snakemake's reason for a job whose params have changed: all of them before and now.
_PARAMS = re.compile("Union of exclusive params before and now across all output: before: (.*)")
_RED, _YELLOW, _DIM, _RESET = "\033[31m", "\033[33m", "\033[2m", "\033[0m"


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """Options on Snakemake's command line, which begin with `--logger-moray-`."""

    plain: bool = field(default=False, metadata={"help": "Print what Snakemake prints by itself."})


class LogHandler(LogHandlerBase):
    """Prints a workflow's progress to standard error."""

    writes_to_stream = True
    writes_to_file = False
    # Snakemake's own: `--quiet` holds here too, and its messages are there for `plain`.
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        common = self.common_settings
        plain = isinstance(self.settings, LogHandlerSettings) and self.settings.plain
        self._plain = plain or common.dryrun or common.verbose
        self._stream: TextIO = sys.stdout if common.stdout else sys.stderr
        self._is_terminal = self._stream.isatty()
        self._in_colors = self._is_terminal and not (common.nocolor or os.environ.get("NO_COLOR"))
        self._running: dict[int, tuple[str, float]] = {}
        self._total = 0
        self._finished: list[str] = []
        # By the id of a job: its name and its logs.
        self._failed: dict[int, tuple[str, Sequence[str]]] = {}
        self._goes_on = False

    def emit(self, record: LogRecord) -> None:
        if self._plain:
            self._print(_PARAMS.sub(_changed, self.format(record)))
            return
        facts = vars(record)
        show = {
            LogEvent.RUN_INFO: self._show_plan,
            LogEvent.JOB_INFO: self._show_start,
            LogEvent.JOB_FINISHED: self._show_end,
            LogEvent.JOB_ERROR: self._show_error,
        }.get(facts.get("event", LogEvent.ERROR))
        if show:
            show(facts)
        elif record.levelno >= WARNING or "event" not in facts:
            self._show_message(record)

    def _show_plan(self, facts: Mapping[str, Any]) -> None:
        # Without a plan, it is about a group of jobs.
        if stats := dict(facts.get("stats") or {}):
            self._total = stats.pop("total")
            trained = stats.get("finetune_run", 0)
            runs = f"{trained} run{'s' * (trained > 1)} to train, " if trained else ""
            self._print(f"{runs}{self._total} job{'s' * (self._total > 1)}", _DIM)

    def _show_start(self, facts: Mapping[str, Any]) -> None:
        name = facts["rule_msg"] or facts["rule_name"]
        self._running[facts["jobid"]] = name, time.monotonic()
        if self._is_terminal:
            self._print(f"{name} ...", _DIM)

    def _show_end(self, facts: Mapping[str, Any]) -> None:
        name, started = self._running.pop(facts["job_id"])
        self._finished.append(name)
        self._failed.pop(facts["job_id"], None)
        self._goes_on = bool(self._failed)
        took = time.monotonic() - started
        width = len(str(self._total))
        number = f"[{len(self._finished):{width}}/{self._total}]"
        self._print(f"{number} {name}" + (f": {took:.0f} s" if took >= 1 else ""), _DIM)

    def _show_error(self, facts: Mapping[str, Any]) -> None:
        name, _ = self._running.pop(facts["jobid"])
        self._goes_on = bool(self._failed)
        self._failed[facts["jobid"]] = name, facts["log"]
        self._print(f"failed: {name}; see {', '.join(facts['log'])}", _RED)

    def _show_summary(self) -> None:
        """What was done and what failed, unless its line is the last one."""
        if not self._goes_on:
            return
        self._print(f"{len(self._finished)} of {self._total} jobs done: {_grouped(self._finished)}")
        for name, logs in self._failed.values():
            self._print(f"failed: {name}{_reason(logs)}", _RED)

    def _show_message(self, record: LogRecord) -> None:
        message = self.format(record)
        if message.startswith(_ENDS_WITH_FAILURES):
            self._show_summary()
        known = all(part in message for part in _OF_A_SCRIPT)
        if not known and not message.startswith(_ABOUT_ITSELF):
            self._print(message, _YELLOW if record.levelno >= WARNING else "")

    def _print(self, text: str, color: str = "") -> None:
        if text:
            shown = f"{color}{text}{_RESET}" if color and self._in_colors else text
            print(shown, file=self._stream, flush=True)


def _grouped(names: Iterable[str]) -> str:
    """Names of jobs, those of the same stage together."""
    stages: dict[str, list[str]] = {}
    for name in names:
        stage, _, rest = name.partition(" ")
        stages.setdefault(stage, []).append(rest)
    return "; ".join(f"{stage} {', '.join(rest)}".strip() for stage, rest in stages.items())


def _reason(logs: Iterable[str]) -> str:
    """The last line of a job's log, which says why it failed; empty if there is none."""
    lines = [
        line
        for log in logs
        if Path(log).is_file()
        for line in Path(log).read_text(errors="replace").splitlines()
        if line.strip()
    ]
    return f": {lines[-1].removeprefix('error: ')}" if lines else ""


def _changed(reason: re.Match[str]) -> str:
    """The keys whose values differ, in place of all params; all of them if they can't be read."""
    rest = reason[1]
    ends = [*(found.start() for found in re.finditer(" ?; ", rest)), len(rest)]
    # Texts among the params can have these marks too.
    for middle, end in product(re.finditer(" now: ", rest), ends):
        parts = (rest[: middle.start()], rest[middle.end() : end])
        if not all(parts):
            continue
        try:
            before, now = (dict(_values(ast.literal_eval(f"[{part}]"))) for part in parts)
        except (SyntaxError, ValueError):
            continue
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        changes = (f"{key} ({before.get(key)} → {now.get(key)})" for key in keys)
        return ", ".join(changes) + rest[end:]
    return reason[0]


def _values(params: list[Any]) -> Iterator[tuple[str, Any]]:
    """The values of params by their dotted keys; a text is that of `code`."""
    # For dry runs alone, so that others start without it.
    from moray.tracking.interface import flat

    for param in params:
        if isinstance(param, dict):
            yield from flat(param, ".").items()
        else:
            yield "code", str(param).removeprefix("code ")
