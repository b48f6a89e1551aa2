"""The task of a store: the one place that knows all tasks."""

from pathlib import Path

from moray.provenance.manifest import read_manifest
from moray.tasks.interface import Task
from moray.tasks.language.task import LanguageTask

_TASKS: dict[str, type[Task]] = {
    "language": LanguageTask,
}


def task_of(store: Path) -> Task:
    """The task that a store's manifest names."""
    manifest = read_manifest(store)
    return _TASKS[manifest["task"]](manifest)
