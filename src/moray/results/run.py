"""A run as its files tell it, whether it is finished or not."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from moray.config.formats import TaskName
from moray.config.schema.experiment import SMOKE_TEST_RUN
from moray.config.tasks import TASK_SECTIONS, TASKS
from moray.train.history import HISTORY, read_history

Status = Literal["finished", "unfinished", "failed"]

# Keys of train.json that hold settings.
_SETTINGS = ("adapter", *TASK_SECTIONS, "train")
_ERROR, _STOPPED = "error: ", "as requested"


@dataclass(frozen=True)
class Run:
    """The files of a run.

    Attributes:
        folder: its folder in `results/runs`.
        work: its newest folder in `ray.storage_path`, which may hold more than `folder` if the run
            isn't finished; None if there is none.
    """

    name: str
    folder: Path
    work: Path | None
    log: Path

    def read(self, file: str) -> dict[str, Any] | None:
        """The content of a JSON file in the run's folder; None if it isn't there."""
        return read_json(self.folder / file)

    @cached_property
    def record(self) -> dict[str, Any] | None:
        """The content of `train.json`; None if the training isn't finished."""
        return self.read("train.json")

    @property
    def status(self) -> Status:
        """Whether the run was trained to its end."""
        if self.record is not None:
            return "finished"
        return "failed" if self.error else "unfinished"

    @property
    def error(self) -> str | None:
        """The last line of the log of an unfinished run, if it is an error."""
        if self.record is not None or not self.log.is_file():
            return None
        last = next(iter(self.log.read_text(errors="replace").splitlines()[::-1]), "")
        if not last.startswith(_ERROR) or _STOPPED in last:
            return None
        return last.removeprefix(_ERROR)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the result depends on, by section; those of no use are left out."""
        known = self.record
        if known is None and self.work is not None:
            known = (read_json(self.work / "identity.json") or {}).get("settings")
        return {key: known[key] for key in _SETTINGS if known and known.get(key)}

    @property
    def task(self) -> TaskName | None:
        """The task, which the sections of the settings tell."""
        settings = self.settings
        with_own_section = (name for name, task in TASKS.items() if task.section_name in settings)
        return next(with_own_section, "language") if settings else None

    def history(self) -> Iterator[dict[str, Any]]:
        """The lines of the history; of an unfinished run, as far as it got."""
        finished = self.folder / HISTORY
        if self.record is None and self.work is not None:
            return read_history(self.work / HISTORY)
        return read_history(finished)


def find_runs(results: Path, state: Path, names: Collection[str] | None) -> list[Run]:
    """The runs of these names in a folder of results; None for all that have a file, sorted."""
    if names is None:
        there = {path.name for path in [*(results / "runs").glob("*/"), *state.glob("[!.]*/")]}
        names = sorted(there - {SMOKE_TEST_RUN})
    logs = results.parent / "logs" / "finetune"
    return [
        Run(name, results / "runs" / name, _newest(state / name), logs / f"{name}.log")
        for name in names
    ]


def _newest(state: Path) -> Path | None:
    """The folder of the fingerprint that a run was trained with last."""
    histories = state.glob(f"*/{HISTORY}")
    newest = max(histories, key=lambda path: path.stat().st_mtime, default=None)
    return newest and newest.parent


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file; None if it isn't there."""
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content
